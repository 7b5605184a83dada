"""Whose directory this is: a format version and the identity of the instance that fills it.

`VERSION` is written first into an empty directory and never changes. A wiped directory gets a
new instance and thereby a new bookie id, so nobody takes it for the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from ledger.bookie.journal import sync_file
from ledger.errors import ForeignDirectory
from ledger.ids import BookieId
from ledger.world.disk import Disk

DIRECTORY_FORMAT: Final = 1
_VERSION_NAME: Final = "VERSION"
_UNSYNCED_NAME: Final = "UNSYNCED"
_INDEX_NAME: Final = "index"
_HARMLESS: Final = frozenset({_VERSION_NAME, _INDEX_NAME, "lost+found"})
_FILE_BYTES_MAX: Final = 4096


def bookie_id(name: str, instance: bytes) -> BookieId:
    """`<name>-<8 hex of the instance>`."""
    return BookieId(f"{name}-{instance[:4].hex()}")


async def claim_directory(disk: Disk, new_instance: Callable[[], bytes]) -> bytes:
    """The instance (16 bytes) that owns the directory: stamped now if it was empty.

    Raises ForeignDirectory, having written nothing, if it is another's or a newer format's.
    """
    names = set(disk.names())
    stamp = await _read(disk, _VERSION_NAME) if _VERSION_NAME in names else b""
    instance = _parse_stamp(stamp)
    if instance is not None:
        return instance
    # A stamp that was torn by a crash stands alone in its directory.
    strangers = names - _HARMLESS
    if strangers:
        raise ForeignDirectory(f"not a bookie's directory: it holds {min(strangers)}")
    if _VERSION_NAME in names:
        if stamp.strip(b"\0") and not _stamp(bytes(16)).startswith(stamp[:16]):
            raise ForeignDirectory("not a bookie's directory: VERSION is of another kind")
        disk.unlink(_VERSION_NAME)
    instance = new_instance()
    assert len(instance) == 16
    await _write(disk, _VERSION_NAME, _stamp(instance))
    return instance


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
