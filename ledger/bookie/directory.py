"""Whose directory this is: a format version and the identity of the instance that fills it.

`VERSION` is written first into an empty directory and never changes. A wiped directory gets a
new instance and thereby a new bookie id, so nobody takes it for the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, cast

from crc32c import crc32c

from ledger.bookie.journal import sync_file
from ledger.errors import ForeignDirectory
from ledger.ids import BookieId
from ledger.ports.disk import Disk

DIRECTORY_FORMAT: Final = 1
VERSION: Final = "VERSION"
_UNSYNCED_NAME: Final = "UNSYNCED"
_STANDING_PREFIX: Final = "standing-"
_INDEX_NAME: Final = "index"
_HARMLESS: Final = frozenset({VERSION, _INDEX_NAME, "lost+found"})
_FILE_BYTES_MAX: Final = 4096


def bookie_id(name: str, instance: bytes) -> BookieId:
    """`<name>-<8 hex of the instance>`."""
    return BookieId(f"{name}-{instance[:4].hex()}")


State = Literal["stopped", "running", "rejoining"]
"""`rejoining`: the cluster has lost its count and is being brought up to the directory's."""


class Standing(NamedTuple):
    """What a directory remembers of the cluster that it serves.

    `serial` counts the starts and clean stops of this bookie; the cluster counts them too, so a
    directory that has seen fewer is an old one. `place` changes when files are copied.
    """

    cluster: str
    bookie: BookieId
    serial: int
    state: State
    place: int


def judge_directory(names: Iterable[str], stamp: bytes) -> bytes | None:
    """The instance of a directory with these files and this VERSION, or None: it is new.

    Raises ForeignDirectory if it is another's or a newer format's.
    """
    instance = _parse_stamp(stamp)
    if instance is not None:
        return instance
    # A stamp that was torn by a crash stands alone in its directory.
    strangers = set(names) - _HARMLESS
    if strangers:
        raise ForeignDirectory(f"not a bookie's directory: it holds {min(strangers)}")
    if stamp.strip(b"\0") and not _stamp(bytes(16)).startswith(stamp[:16]):
        raise ForeignDirectory("not a bookie's directory: VERSION is of another kind")
    return None


async def claim_directory(disk: Disk, new_instance: Callable[[], bytes]) -> bytes:
    """The instance (16 bytes) that owns the directory: stamped now if it was empty.

    Raises ForeignDirectory, having written nothing, if it is another's or a newer format's.
    """
    names = disk.names()
    instance = judge_directory(names, await _read(disk, VERSION) if VERSION in names else b"")
    if instance is not None:
        return instance
    if VERSION in names:
        disk.unlink(VERSION)
    instance = new_instance()
    assert len(instance) == 16
    await _write(disk, VERSION, _stamp(instance))
    return instance


async def read_standings(disk: Disk) -> list[Standing]:
    """Whole ones, by serial. More than one: the cluster may not know of the last yet."""
    found = [parse_standing(await _read(disk, name)) for name in _standing_names(disk)]
    return sorted(
        (standing for standing in found if standing is not None),
        key=lambda standing: standing.serial,
    )


async def write_standing(disk: Disk, standing: Standing) -> None:
    """It stands beside the one before, durably; that goes with `forget_other_standings`."""
    name = _standing_name(standing.serial)
    if name in disk.names():
        disk.unlink(name)
    await _write(disk, name, _encode_standing(standing))


def drop_standing(disk: Disk, serial: int) -> None:
    """The standing with this serial is gone, durably; the one before it counts again."""
    disk.unlink(_standing_name(serial))
    disk.sync_directory()


def forget_other_standings(disk: Disk, serial: int) -> None:
    """Only the standing with this serial is left, durably."""
    for name in _standing_names(disk):
        if name != _standing_name(serial):
            disk.unlink(name)
    disk.sync_directory()


def parse_standing(content: bytes) -> Standing | None:
    """None if it is not whole."""
    body, _, crc = content.rpartition(b"crc ")
    if crc != f"{crc32c(body):08x}\n".encode():
        return None
    fields = dict(line.split(" ", 1) for line in body.decode().splitlines())
    return Standing(
        fields["cluster"],
        BookieId(fields["bookie"]),
        int(fields["serial"]),
        cast("State", fields["state"]),
        int(fields["place"]),
    )


def _encode_standing(standing: Standing) -> bytes:
    lines = (
        f"cluster {standing.cluster}\nbookie {standing.bookie}\nserial {standing.serial}\n"
        f"state {standing.state}\nplace {standing.place}\n"
    )
    return f"{lines}crc {crc32c(lines.encode()):08x}\n".encode()


def _standing_name(serial: int) -> str:
    return f"{_STANDING_PREFIX}{serial:016x}"


def _standing_names(disk: Disk) -> list[str]:
    return [name for name in disk.names() if name.startswith(_STANDING_PREFIX)]


async def mark_unsynced(disk: Disk, boot_id: str) -> None:
    """From now on acknowledgements do not wait for the disk; said durably, with the boot."""
    await forget_unsynced(disk)
    await _write(disk, _UNSYNCED_NAME, boot_id.encode())


async def forget_unsynced(disk: Disk) -> None:
    """All is on disk (again)."""
    if _UNSYNCED_NAME in disk.names():
        disk.unlink(_UNSYNCED_NAME)
        disk.sync_directory()


async def lost_unsynced(disk: Disk, boot_id: str) -> bool:
    """The last run did not sync, did not stop cleanly, and the machine restarted since."""
    if _UNSYNCED_NAME not in disk.names():
        return False
    return await _read(disk, _UNSYNCED_NAME) != boot_id.encode()


def _stamp(instance: bytes) -> bytes:
    lines = f"bookie directory\nformat {DIRECTORY_FORMAT}\ninstance {instance.hex()}\n"
    return f"{lines}crc {crc32c(lines.encode()):08x}\n".encode()


def _parse_stamp(stamp: bytes) -> bytes | None:
    """The instance; None if this is no whole stamp. Raises ForeignDirectory."""
    body, _, crc = stamp.rpartition(b"crc ")
    if crc != f"{crc32c(body):08x}\n".encode():
        return None
    fields = dict(line.split(" ", 1) for line in body.decode().splitlines())
    if fields.get("bookie") != "directory":
        raise ForeignDirectory("not a bookie's directory: VERSION is of another kind")
    if fields.get("format") != str(DIRECTORY_FORMAT):
        raise ForeignDirectory(
            f"bookie directory of format {fields.get('format')}, known is {DIRECTORY_FORMAT}"
        )
    return bytes.fromhex(fields["instance"])


async def _read(disk: Disk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return bytes(await file.read(0, _FILE_BYTES_MAX))
    finally:
        file.close()


async def _write(disk: Disk, name: str, content: bytes) -> None:
    file = disk.create(name)
    try:
        file.write([content], 0)
        await sync_file(file)
    finally:
        file.close()
    disk.sync_directory()
