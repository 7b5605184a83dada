"""An independent reader of a bookie's log files, written from docs/formats/log-file.md alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from struct import calcsize, unpack_from
from typing import NamedTuple

from crc32c import crc32c

_BLOCK = 4096
_GROUP = ">IIQQIIQQ"
_RECORD = ">B3xIqq"
_ADD, _DELETED = 1, 7


class Place(NamedTuple):
    """Where a log file has an entry."""

    file: str
    position: int
    length: int
    body: bytes


def files_in(directory: Path) -> dict[str, bytes]:
    """The log files of a bookie's directory."""
    return {path.name: path.read_bytes() for path in directory.glob("log-*")}


def files_of(disk) -> dict[str, bytes]:
    """The log files of a simulated disk."""
    names = [name for name in disk.names() if name.startswith("log-")]
    return {name: bytes(disk._names[name].view) for name in names}


def walk(files: Mapping[str, bytes]) -> dict[tuple[int, int], list[Place]]:
    """Every record of every entry of ledgers that were not deleted, oldest first."""
    found: dict[tuple[int, int], list[Place]] = {}
    for name in sorted(files):
        matched = re.fullmatch("log-([0-9a-f]{16})", name)
        assert matched is not None, name
        _walk_file(name, int(matched[1], 16), files[name], found)
    return found


def _walk_file(name, file_id, data, found):
    magic, _, _, instance, own_id = unpack_from(">8sII16sQ", data)
    assert (magic, own_id) == (b"LEDGRLOG", file_id)
    salt = crc32c(instance)
    at = _BLOCK
    while at + calcsize(_GROUP) <= len(data):
        magic, checksum, of, position, length, count, _, _ = unpack_from(_GROUP, data, at)
        begin = at + calcsize(_GROUP)
        covered = data[at + 8 : begin + length]
        sound = magic == 0x4C475250 and (of, position) == (file_id, at)
        if not sound or crc32c(covered, salt) != checksum:
            at += _BLOCK
            continue
        _walk_group(name, data, begin, count, found)
        at = -(-(begin + length) // _BLOCK) * _BLOCK


def _walk_group(name, data, at, count, found):
    for _ in range(count):
        kind, length, ledger, entry = unpack_from(_RECORD, data, at)
        at += calcsize(_RECORD)
        body = data[at : at + length]
        if kind == _ADD:
            found.setdefault((ledger, entry), []).append(Place(name, at, length, body))
        elif kind == _DELETED:
            for key in [key for key in found if key[0] == ledger]:
                del found[key]
        at += length


def newest(files: Mapping[str, bytes], ledger: int, entry: int) -> Place | None:
    """Where the log has an entry last, or None."""
    return (walk(files).get((ledger, entry)) or [None])[-1]
