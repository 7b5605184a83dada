"""The pages about slow requests, and the plots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.http.pages import Action, Asked, Page, Stream, on_cluster
from gateway.http.views.history import history_view, plots_view
from gateway.http.views.slow import slow_view


def _slow_command(asked: Asked) -> str:
    api = asked.query.get("api", "")
    return f"gateway slow --api {api}" if api.isalnum() else "gateway slow"


def _always(command: str) -> Callable[[Asked], str]:
    return lambda asked: command


PAGES: Final[tuple[Page, ...]] = (
    Page(
        path="/slow",
        name="slow",
        title="Slow requests",
        needs=on_cluster,
        view=slow_view,
        command=_slow_command,
        in_menu=True,
    ),
    Page(
        path="/plots",
        name="plots",
        title="Plots",
        needs=on_cluster,
        view=plots_view,
        command=_always("gateway top"),
        in_menu=True,
    ),
    Page(
        path="/history",
        name="history",
        title="Plot",
        needs=on_cluster,
        view=history_view,
        command=_always("gateway top"),
    ),
)
STREAMS: Final[tuple[Stream, ...]] = ()
ACTIONS: Final[tuple[Action, ...]] = ()
