"""Symbols for what may differ between two servers: ids, leader epochs, times."""

from __future__ import annotations

import re
import uuid
from base64 import urlsafe_b64encode
from typing import Any

RECENT_MS = 1_700_000_000_000
"""Times from here on are of a clock; the cases write records with earlier times."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NODE = re.compile(r"(?<=\bbroker )\d+\b")
_THIS_NODE = re.compile(
    r"(?<=broker id, expected )\d+|(?<=\bLocal controller )\d+|(?<=node id. Expected )\d+"
)
_MOMENT = re.compile(r"\b\d{13}\b")
_UUID_TEXT = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")


class Symbols:
    """The ids of one server in one case, numbered by kind in the order of their appearance.

    With `one_node` all brokers have one symbol.
    """

    def __init__(self, *, one_node: bool = False) -> None:
        self._one_node = one_node
        self._numbers: dict[str, dict[Any, int]] = {}
        # The texts in which ids appear inside error messages.
        self._texts: dict[str, str] = {}

    def of(self, kind: str, value: Any) -> str:
        """Return the symbol of an id."""
        known = self._numbers.setdefault(kind, {})
        number = known.setdefault(value, len(known) + 1)
        symbol = f"<{kind} {1 if kind == 'node' and self._one_node else number}>"
        if isinstance(value, uuid.UUID):
            self._texts[urlsafe_b64encode(value.bytes).decode().rstrip("=")] = symbol
        return symbol

    def named_node(self, text: str) -> str:
        """Return the symbol of a node whose id was seen before, if the text is its id."""
        nodes = self._numbers.get("node", {})
        known = text.isascii() and text.isdigit() and int(text) in nodes
        return self.of("node", int(text)) if known else text

    def in_text(self, text: str) -> str:
        """Return a text with the ids that were seen before replaced by their symbols."""
        text = _UUID.sub(lambda match: self.of("member", match[0]), text)
        nodes = self._numbers.get("node", {})
        text = _NODE.sub(
            lambda match: self.of("node", int(match[0])) if int(match[0]) in nodes else match[0],
            text,
        )
        text = _THIS_NODE.sub("<node>", text)
        text = _MOMENT.sub(_moment, text)
        return _UUID_TEXT.sub(lambda match: self._texts.get(match[0], match[0]), text)


def _moment(match: re.Match[str]) -> str:
    return "<time>" if int(match[0]) >= RECENT_MS else match[0]


def epoch_symbol(symbols: Symbols, value: int) -> Any:
    """Return an epoch above 0 as a symbol; 0 and -1 stay."""
    return symbols.of("epoch", int(value)) if value > 0 else int(value)


def time_symbol(_: Symbols, value: int) -> Any:
    """Return a time of a clock as a symbol; times that a case wrote stay."""
    return "<time>" if value >= RECENT_MS else int(value)
