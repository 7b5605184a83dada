"""The form of a page: one row for each, from which its HTML and its JSON are served.

A page at `/topics` is also JSON at `/api/v1/topics`: the same view returns one object, which a
template draws or `json` encodes. So whatever a page shows, a program can read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.access import CLUSTER, Operation, Resource, ResourceType

if TYPE_CHECKING:
    from gateway.http.site import Site

Json = dict[str, Any]

API: Final = "/api/v1"
LIMIT: Final = 50
LIMIT_MAX: Final = 500
CURSOR_CHARACTERS_MAX: Final = 4_000  # that of a search has a place in up to 128 partitions


class Refused(Exception):
    """A request that is answered with an HTTP error: its status, a code, and a text for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Asked(NamedTuple):
    """One request: the parts of its path, its query, its form if it changes something, and who."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    principal: str
    address: str = ""
    form: Mapping[str, str] = {}
    cursor: str | None = None  # where the rows begin; None is the first
    limit: int = LIMIT  # rows, 1 to LIMIT_MAX


Needs = Callable[[Mapping[str, str]], tuple[Operation, Resource]]
"""Returns what a principal must be allowed to do, from the parts of the path."""


def on_cluster(path: Mapping[str, str]) -> tuple[Operation, Resource]:
    """Need to describe the cluster."""
    return Operation.DESCRIBE, CLUSTER


def on_topic(operation: Operation) -> Needs:
    """Need an operation on the topic that the path names as `topic`."""
    return lambda path: (operation, Resource(ResourceType.TOPIC, path["topic"]))


def on_group(operation: Operation) -> Needs:
    """Need an operation on the group that the path names as `group`."""
    return lambda path: (operation, Resource(ResourceType.GROUP, path["group"]))


def _is_large(found: Json) -> bool:
    return False


class Page(NamedTuple):
    """A page that shows something. `view` returns what both forms of it show."""

    path: str  # with {names} as Starlette writes them
    name: str  # of its template, `NAME.html`
    title: str
    needs: Needs
    view: Callable[[Asked, Site], Awaitable[Json]]
    command: Callable[[Asked], str]  # the command that shows the same
    in_menu: bool = False
    # Returns whether its rows are short and few (up to LIMIT), so that the loop may draw them.
    is_small: Callable[[Json], bool] = _is_large


def api_path(page: Page) -> str:
    """Return the path at which a page is JSON."""
    return API + ("/overview" if page.path == "/" else page.path)


class Stream(NamedTuple):
    """Events for as long as a browser listens (SSE). Each has a name and one JSON object."""

    path: str
    needs: Needs
    events: Callable[[Asked, Site], AsyncIterator[tuple[str, Json]]]


class Download(NamedTuple):
    """A file that is made while it is sent, for as long as the browser takes it."""

    path: str
    needs: Needs
    media_type: str
    pieces: Callable[[Asked, Site], AsyncIterator[bytes]]


class Action(NamedTuple):
    """A change. It is served only with `--http-write`, and each is noted as an event."""

    path: str
    name: str  # of its event, Kafka's name of the operation
    needs: Needs
    act: Callable[[Asked, Site], Awaitable[Json]]
    resource: Callable[[Asked], str]  # of its event, such as `TOPIC:orders`


class Rows(NamedTuple):
    """All rows of an application."""

    pages: tuple[Page, ...]
    streams: tuple[Stream, ...] = ()
    actions: tuple[Action, ...] = ()
    templates: tuple[Path, ...] = ()  # further directories of templates
    downloads: tuple[Download, ...] = ()
