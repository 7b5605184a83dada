"""A bookie's directory: its format version, its instance, and the markers UNSYNCED and damaged.

`VERSION` is written first into an empty directory. It changes only when a newer release first
writes a form that earlier releases cannot read. A wiped directory gets a new instance and a new
bookie id, so it is never mistaken for the old directory.
`damaged-<log file>` says that rot was found in that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from ledger.bookie.sync_file import sync_file
from ledger.core.journal_format import file_name, parse_file_name
from ledger.crc32c import crc32c
from ledger.errors import ForeignDirectory
from ledger.ids import BookieId
from ledger.ports.disk import Disk, LogFile

DIRECTORY_FORMAT: Final = 2
"""1: the index has a row per entry. 2: it may have extents, which releases of format 1 refuse."""
_FORMATS: Final = frozenset({"1", "2"})
VERSION: Final = "VERSION"
UNSYNCED: Final = "UNSYNCED"
_SYNC_FAILED: Final = b"a sync failed"  # in UNSYNCED: the id of no boot
_INDEX: Final = "index"
_DAMAGED: Final = "damaged-"
_EXPECTED: Final = frozenset({VERSION, _INDEX, "lost+found"})
_FILE_BYTES_MAX: Final = 4096


def bookie_id(name: str, instance: bytes) -> BookieId:
    """Return `<name>-<8 hex digits of the instance>`."""
    return BookieId(f"{name}-{instance[:4].hex()}")


def check_directory(names: Iterable[str], stamp: bytes) -> bytes | None:
    """Return the instance that owns a directory, or None if the directory is new.

    `names` are the names of its files, `stamp` is the content of VERSION. Raises ForeignDirectory
    if the directory is not a bookie's or has a newer format.
    """
    instance = _parse_stamp(stamp)
    if instance is not None:
        return instance
    # A VERSION file torn by a crash is alone in its directory.
    foreign = set(names) - _EXPECTED
    if foreign:
        raise ForeignDirectory(f"not a bookie's directory: it contains {min(foreign)}")
    if stamp.strip(b"\0") and not _stamp(bytes(16)).startswith(stamp[:16]):
        raise ForeignDirectory("not a bookie's directory: VERSION has another format")
    return None


async def claim_directory(disk: Disk, new_instance: Callable[[], bytes]) -> bytes:
    """Return the instance (16 bytes) that owns the directory; write VERSION if it is empty.

    An existing VERSION is written again and synced. Raises ForeignDirectory, without writing, if
    the directory is not a bookie's or has a newer format. Raises OSError if the disk fails.
    """
    names = disk.names()
    stamp = await read_file(disk, VERSION) if VERSION in names else b""
    instance = check_directory(names, stamp)
    if instance is not None:
        # A process that was killed, or a failed sync, may have left VERSION unsynced. A power cut
        # would then lose it beside log files that are durable.
        await _write_and_sync(disk, disk.open(VERSION), stamp)
        return instance
    if VERSION in names:
        disk.unlink(VERSION)
    instance = new_instance()
    assert len(instance) == 16
    await write_file(disk, VERSION, _stamp(instance))
    return instance


async def upgrade_directory(disk: Disk, instance: bytes) -> None:
    """Write the newest format into VERSION, before anything that earlier releases cannot read.

    The text keeps its length and fits into a sector, so a power cut leaves the old one or the new
    one. Raises OSError.
    """
    old, new = await read_file(disk, VERSION), _stamp(instance)
    if old != new:
        assert len(old) == len(new)
        await _write_and_sync(disk, disk.open(VERSION), new)


async def mark_unsynced(disk: Disk, boot_id: str) -> None:
    """Write UNSYNCED durably, before adds are acknowledged without waiting for the disk.

    Call once the limbo after a lost boot is durable. An UNSYNCED of an earlier run is overwritten
    in place, so a failure leaves the old one, the new one or a torn one, which counts as a loss.
    """
    exists = UNSYNCED in disk.names()
    file = disk.open(UNSYNCED) if exists else disk.create(UNSYNCED)
    await _write_and_sync(disk, file, boot_id.encode())


def note_lost_sync(disk: Disk) -> None:
    """Make UNSYNCED count as a loss also in the same boot, because entries did not reach the disk.

    Not synced: the page cache keeps it until a reboot, after which either content is a loss.
    """
    with suppress(OSError):
        if UNSYNCED not in disk.names():
            return
        file = disk.open(UNSYNCED)
        try:
            file.write([_SYNC_FAILED], 0)
            file.truncate(len(_SYNC_FAILED))
        finally:
            file.close()


async def clear_unsynced(disk: Disk) -> None:
    """Sync every log file, because a run that was killed may not have, then delete UNSYNCED.

    Raises OSError. A failed sync is a loss of which the next start knows.
    """
    names = disk.names()
    if UNSYNCED not in names:
        return
    for name in names:
        if parse_file_name(name) is not None:
            file = disk.open(name)
            try:
                await sync_file(file)
            except OSError:
                note_lost_sync(disk)
                raise
            finally:
                file.close()
    disk.unlink(UNSYNCED)
    disk.sync_directory()


async def lost_unsynced(disk: Disk, boot_id: str) -> bool:
    """True if the last run did not sync or stop cleanly, and the machine has rebooted since.

    True in the same boot too if a sync failed: a later one succeeds without the dropped bytes.
    """
    if UNSYNCED not in disk.names():
        return False
    return await read_file(disk, UNSYNCED) != boot_id.encode()


async def remember_damaged(disk: Disk, found: Iterable[int]) -> frozenset[int]:
    """Store durably that replay found rot in these log files. Returns all such files so far.

    Call before the index is flushed: later starts replay only what follows. The marker of a file
    that is gone is deleted. Raises OSError.
    """
    names = disk.names()
    markers = [name.removeprefix(_DAMAGED) for name in names if name.startswith(_DAMAGED)]
    marked = {file_id for name in markers if (file_id := parse_file_name(name)) is not None}
    gone = {file_id for file_id in marked if file_name(file_id) not in names}
    for file_id in gone:
        disk.unlink(_DAMAGED + file_name(file_id))
    damaged = frozenset(found)
    for file_id in sorted(damaged - marked):
        if file_name(file_id) in names:
            await write_file(disk, _DAMAGED + file_name(file_id), b"")
    if damaged or gone:
        disk.sync_directory()  # an earlier start may have failed between a marker and its sync
    return damaged | (marked - gone)


async def read_file(disk: Disk, name: str) -> bytes:
    """Return the content of a small file. Raises OSError."""
    file = disk.open(name)
    try:
        return bytes(await file.read(0, _FILE_BYTES_MAX))
    finally:
        file.close()


async def write_file(disk: Disk, name: str, content: bytes) -> None:
    """Create a small file durably, with its directory entry. Raises OSError."""
    await _write_and_sync(disk, disk.create(name), content)


async def _write_and_sync(disk: Disk, file: LogFile, content: bytes) -> None:
    """Make this the content of the file, sync file and directory, and close it. Raises OSError."""
    try:
        file.write([content], 0)
        if file.size() > len(content):
            file.truncate(len(content))
        await sync_file(file)
    finally:
        file.close()
    disk.sync_directory()


def _stamp(instance: bytes) -> bytes:
    lines = f"bookie directory\nformat {DIRECTORY_FORMAT}\ninstance {instance.hex()}\n"
    return f"{lines}crc {crc32c(lines.encode()):08x}\n".encode()


def _parse_stamp(stamp: bytes) -> bytes | None:
    """Return the instance, or None if the stamp is torn. Raises ForeignDirectory."""
    body, _, crc = stamp.rpartition(b"crc ")
    if crc != f"{crc32c(body):08x}\n".encode():
        return None
    fields = dict(line.split(" ", 1) for line in body.decode().splitlines())
    if fields.get("bookie") != "directory":
        raise ForeignDirectory("not a bookie's directory: VERSION has another format")
    if fields.get("format") not in _FORMATS:
        raise ForeignDirectory(
            f"bookie directory format {fields.get('format')} is not supported, "
            f"only up to format {DIRECTORY_FORMAT}"
        )
    return bytes.fromhex(fields["instance"])
