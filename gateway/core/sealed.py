"""Small documents that notice a flipped bit: format, CRC-32C, then JSON, in one line of text."""

from __future__ import annotations

import json
from typing import Any, cast

from crc32c import crc32c

from ledger.errors import CorruptFormat

FORMAT = 1


def seal(document: dict[str, Any]) -> bytes:
    """The document as bytes: `1 <crc32c of the JSON, 8 hex> <JSON>`."""
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return b"%d %08x %s" % (FORMAT, crc32c(body), body)


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """The document. Raises CorruptFormat, naming `path`. Fields that we do not know are kept."""
    parts = data.split(b" ", 2)
    if len(parts) != 3:
        raise CorruptFormat(f"{path}: {len(data)} bytes that are no sealed document")
    if parts[0] != b"%d" % FORMAT:
        raise CorruptFormat(f"{path}: format {parts[0][:8]!r}; this version reads {FORMAT}")
    if parts[1] != b"%08x" % crc32c(parts[2]):
        raise CorruptFormat(f"{path}: the checksum does not match")
    try:
        document: object = json.loads(parts[2])
    except ValueError as error:
        raise CorruptFormat(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise CorruptFormat(f"{path}: not a document")
    return cast("dict[str, Any]", document)
