"""The identity file of a bookie's directory: its cluster, its bookie id and its start count.

The count rises with each start and clean stop. The cluster keeps the same count in the bookie's
cookie, so an old copy of a directory shows a lower count. The file is named `standing-<count>`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, cast

from ledger.bookie.directory import read_file, write_file
from ledger.crc32c import crc32c
from ledger.ids import BookieId
from ledger.ports.disk import Disk

_PREFIX: Final = "standing-"

RunState = Literal["stopped", "running", "rejoining"]
"""`rejoining`: the cluster lost its count and is being raised to the directory's count."""


class StartCount(NamedTuple):
    """The cluster and bookie of a directory, and the count of its starts.

    `serial` counts the starts and clean stops of this bookie. `inode` is the inode of `VERSION`,
    which changes when the files are copied.
    """

    cluster: str
    bookie: BookieId
    serial: int
    state: RunState
    inode: int


async def read_start_counts(disk: Disk) -> list[StartCount]:
    """Read all valid identity files, lowest count first.

    Several files exist while the cluster may not have stored the last count.
    """
    found = [parse_start_count(await read_file(disk, name)) for name in _file_names(disk)]
    return sorted((one for one in found if one is not None), key=lambda one: one.serial)


async def write_start_count(disk: Disk, count: StartCount) -> None:
    """Write the identity file durably, beside the previous file.

    `delete_other_start_counts` deletes the previous file, once the cluster has counted too.
    """
    name = _file_name(count.serial)
    if name in disk.names():
        disk.unlink(name)
    await write_file(disk, name, _encode(count))


def delete_start_count(disk: Disk, serial: int) -> None:
    """Delete the identity file with this count, durably. The previous file is valid again."""
    disk.unlink(_file_name(serial))
    disk.sync_directory()


def delete_other_start_counts(disk: Disk, serial: int) -> None:
    """Delete every identity file except the one with this count, durably."""
    for name in _file_names(disk):
        if name != _file_name(serial):
            disk.unlink(name)
    disk.sync_directory()


def parse_start_count(content: bytes) -> StartCount | None:
    """Parse an identity file. Returns None if it is torn."""
    body, _, crc = content.rpartition(b"crc ")
    if crc != f"{crc32c(body):08x}\n".encode():
        return None
    fields = dict(line.split(" ", 1) for line in body.decode().splitlines())
    return StartCount(
        fields["cluster"],
        BookieId(fields["bookie"]),
        int(fields["serial"]),
        cast("RunState", fields["state"]),
        int(fields["place"]),
    )


def _encode(count: StartCount) -> bytes:
    lines = (
        f"cluster {count.cluster}\nbookie {count.bookie}\nserial {count.serial}\n"
        f"state {count.state}\nplace {count.inode}\n"
    )
    return f"{lines}crc {crc32c(lines.encode()):08x}\n".encode()


def _file_name(serial: int) -> str:
    return f"{_PREFIX}{serial:016x}"


def _file_names(disk: Disk) -> list[str]:
    return [name for name in disk.names() if name.startswith(_PREFIX)]
