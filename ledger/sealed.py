"""Encodes small documents with a checksum: format, CRC-32C and JSON in one line of text."""

from __future__ import annotations

import json
from typing import Any, cast

from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat

FORMAT = 1


def seal(document: dict[str, Any]) -> bytes:
    """Encode the document as `1 <crc32c of the JSON, 8 hex digits> <JSON>`."""
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return seal_body(body)


def seal_body(body: bytes) -> bytes:
    """Put the format and the checksum before the JSON of a document."""
    return b"%d %08x %s" % (FORMAT, crc32c(body), body)


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """Decode a document. Raises CorruptFormat with `path`. Unknown fields are kept."""
    parts = data.split(b" ", 2)
    if len(parts) != 3:
        raise CorruptFormat(f"{path}: {len(data)} bytes are not a sealed document")
    if parts[0] != b"%d" % FORMAT:
        raise CorruptFormat(f"{path}: has format {parts[0][:8]!r}; this release reads {FORMAT}")
    if parts[1] != b"%08x" % crc32c(parts[2]):
        raise CorruptFormat(f"{path}: the checksum does not match")
    try:
        document: object = json.loads(parts[2])
    except ValueError as error:
        raise CorruptFormat(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise CorruptFormat(f"{path}: is not a JSON object")
    return cast("dict[str, Any]", document)
