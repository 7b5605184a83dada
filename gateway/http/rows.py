"""All pages, streams and changes, in the order of the menu."""

from __future__ import annotations

from typing import Final

from gateway.http import rows_figures, rows_metrics, rows_records, rows_security
from gateway.http.pages import Action, Download, Page, Stream

PAGES: Final[tuple[Page, ...]] = (
    *(*rows_figures.PAGES, *rows_metrics.PAGES, *rows_security.PAGES, *rows_records.PAGES),
)
STREAMS: Final[tuple[Stream, ...]] = (*rows_figures.STREAMS, *rows_records.STREAMS)
DOWNLOADS: Final[tuple[Download, ...]] = (*rows_records.DOWNLOADS,)
ACTIONS: Final[tuple[Action, ...]] = (*rows_figures.ACTIONS, *rows_records.ACTIONS)
