"""The templates of the page without a gateway, and a reader of what they render."""

from __future__ import annotations

from functools import partial
from html.parser import HTMLParser
from typing import Any, cast
from urllib.parse import quote

from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

from gateway.http.pages import Asked, Json
from gateway.http.plotted import History, Plots
from gateway.http.shown import FUNCTIONS
from tests.peers.install import ROOT

TEMPLATES = ROOT / "gateway" / "http" / "templates"


class Tags(HTMLParser):
    """The tags of a page, and whether any has a style or a handler."""

    def __init__(self, text):
        super().__init__()
        self.names = []
        self.bad = []
        self.words = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.bad += [name for name, _ in attributes if name == "style" or name.startswith("on")]

    def handle_data(self, data):
        self.words.append(data)


async def no_history(path: str, asked: Asked) -> Json:
    """Return what is no history."""
    return {}


class Templates:
    """The templates of the page with one of our own, `paper.html`."""

    def __init__(self, template: str, history: History = no_history, **shared: Any) -> None:
        more = DictLoader({"paper.html": template})
        environment = Environment(
            loader=ChoiceLoader([FileSystemLoader(TEMPLATES), more]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = cast("dict[str, Any]", environment.filters)
        filters["url_part"] = partial(quote, safe="")
        self.plots = Plots(environment, history)
        own = {"ui_plot": self.plots.place, "ui_rows": self.plots.rows}
        environment.globals.update(FUNCTIONS, **{"menu": [], "site": None, **own, **shared})

    def drawn(self, asked: Asked, **values: Any) -> str:
        """Return the page. Playwright may have the event loop, so this runs without one."""
        page = self.plots.rendered("paper.html", asked=asked, **values)
        try:
            self.plots.histories(page, asked).send(None)
        except StopIteration as done:
            return self.plots.drawn(page, done.value)
        raise AssertionError("a history waits")
