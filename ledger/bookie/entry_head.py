"""The header of an entry that a client adds: the bookie believes it only where it must."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from ledger.ids import Buffer

_HEAD = Struct(">qqq")  # start of an entry's header: ledger, entry and LAC
_HEAD_BYTES: Final = 32  # size of an entry's header, including the length field after `_HEAD`


def parse_head(ledger: int, entry: int, body: Sequence[Buffer]) -> int | None:
    """Return the LAC in the header of `body`, or None if the header is not that of the entry."""
    head = body[0] if body else b""
    if len(head) < _HEAD_BYTES:
        head = b"".join(body)
        if len(head) < _HEAD_BYTES:
            return None
    ledger_read, entry_read, lac = _HEAD.unpack_from(head)
    if ledger_read != ledger or entry_read != entry or ledger < 0 or not -1 <= lac < entry:
        return None
    return lac
