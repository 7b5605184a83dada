"""The disk port in memory, with seeded faults and power cuts.

A crash decides for every unsynced write of a file whether it is kept, lost or torn at sectors of
512 bytes, and for every name whether its creation or removal happened. A failed sync drops the
file's unsynced bytes from the disk but not from the reader's view, as Linux does.

In the shape of io_uring (`DiskFaults.uring`) an aligned write of a growing file begins with its
sync. Readers see its bytes at some moment before it completes. It completes late, in any order with
others, in full, cut short or with an error, or a crash takes its completion away. The product's own
`Submission` takes the results.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ledger.adapters.posix.uring import Submission

SECTOR_BYTES = 512

FULL_IN_A_WRITE = "a write ends with ENOSPC, and a part of it is there"
FULL_IN_A_SYNC = "a sync ends with ENOSPC"
FULL_AT_A_CREATION = "a creation ends with ENOSPC"
EIO_IN_A_WRITE = "a write ends with EIO, and a part of it is there"
EIO_ON_A_READ = "a read ends with EIO"
EIO_ON_THE_DIRECTORY = "a sync of the directory ends with EIO"
EIO_ON_AN_UNLINK = "an unlink ends with EIO"
ACCIDENTS = (
    FULL_IN_A_WRITE,
    FULL_IN_A_SYNC,
    FULL_AT_A_CREATION,
    EIO_IN_A_WRITE,
    EIO_ON_A_READ,
    EIO_ON_THE_DIRECTORY,
    EIO_ON_AN_UNLINK,
)
SHORT_IN_A_COMPLETION = "a submitted write completes with fewer bytes"
EIO_IN_A_COMPLETION = "a submitted write completes with EIO, and a part of it is there"
URING_ACCIDENTS = (*ACCIDENTS, SHORT_IN_A_COMPLETION, EIO_IN_A_COMPLETION)
MISDIRECTED_WRITE = "a write succeeds, and its bytes are at another place"
BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFaults:
    """What goes wrong, and how long things take (virtual seconds)."""

    sync_s_max: float = 0.002
    lying_sync: bool = False  # says "synced" and keeps the bytes volatile
    capacity_bytes: int = 1 << 40
    uring: bool = False  # writes of growing files complete as those of io_uring


class _Content:
    """One file: what the disk holds, what readers see, and what lies between."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.view = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []  # None: the length was set

    def apply(self, position: int, data: bytes | None) -> None:
        self.unsynced.append((position, data))
        _write_into(self.view, position, data)

    def sync(self) -> None:
        for position, data in self.unsynced:
            _write_into(self.durable, position, data)
        self.unsynced.clear()

    def settle(self, write: tuple[int, bytes | None], others: Sequence[object] = ()) -> None:
        """A write is durable, and `others` too; so is each length that was set before it."""
        kept: list[tuple[int, bytes | None]] = []
        before = True
        for each in self.unsynced:
            before = before and each is not write
            wanted = each is write or any(each is other for other in others)
            if wanted or (before and each[1] is None):
                _write_into(self.durable, *each)
            else:
                kept.append(each)
        self.unsynced = kept


@dataclass(slots=True, eq=False)
class _InFlight:
    """A submitted write that has not completed."""

    content: _Content
    position: int
    data: bytes
    # The write as `content.unsynced` has it, once the kernel has begun it.
    begun: tuple[int, bytes | None] | None = None

    def begin(self, size: int) -> None:
        """The kernel writes the first `size` bytes."""
        if self.begun is None:
            self.content.apply(self.position, self.data[:size])
            self.begun = self.content.unsynced[-1]


@dataclass(frozen=True, slots=True)
class _Misdirected:
    """A write whose bytes are at another place than they were meant for."""

    content: _Content
    position: int
    wrong: int
    data: bytes
    covered: bytes

    def put_right(self) -> None:
        content = self.content
        try:
            content.unsynced[content.unsynced.index((self.wrong, self.data))] = (
                self.position,
                self.data,
            )
        except ValueError:  # it was synced
            _write_into(content.durable, self.wrong, self.covered)
            _write_into(content.durable, self.position, self.data)
        content.view = bytearray(content.durable)
        for position, data in content.unsynced:
            _write_into(content.view, position, data)


def _write_into(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if len(target) > position:
            del target[position:]
        target.extend(bytes(position - len(target)))
        return
    if len(target) < position + len(data):
        target.extend(bytes(position + len(data) - len(target)))
    target[position : position + len(data)] = data


class SimDisk:
    """One directory of one simulated machine. After `crash` only the returned disk is alive."""

    def __init__(self, random: Random, faults: DiskFaults | None = None) -> None:
        self.random = random
        self.faults = faults if faults is not None else DiskFaults()
        self.alive = True
        self.fail_next_sync = False
        self.syncs = 0
        self.full = False
        # What goes wrong next, each once: of `ACCIDENTS`, or MISDIRECTED_WRITE. Any order.
        self.accidents: list[str] = []
        # Accidents that happened, here and on the disks before crashes.
        self.happened: set[str] = set()
        self.misdirected: _Misdirected | None = None
        self.on_misdirected: Callable[[], None] = lambda: None
        self._names: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        # Submitted writes that have not completed.
        self.in_flight: list[_InFlight] = []

    def names(self) -> list[str]:
        return sorted(self._names)

    def create(self, name: str, expected_bytes: int = 0) -> SimLogFile:
        if name in self._names:
            raise FileExistsError(errno.EEXIST, name)
        self._check_room(0)
        self._fail_if(FULL_AT_A_CREATION, errno.ENOSPC)
        self._names[name] = _Content()
        if expected_bytes and self.random.random() < 0.5:
            self._names[name].apply(expected_bytes, None)
            self._names[name].sync()
        return SimLogFile(self, self._names[name], grows=expected_bytes > 0)

    def open(self, name: str) -> SimLogFile:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, name)
        return SimLogFile(self, self._names[name])

    def unlink(self, name: str) -> None:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, name)
        self._fail_if(EIO_ON_AN_UNLINK, errno.EIO)
        del self._names[name]

    def sync_directory(self) -> None:
        self._fail_if(EIO_ON_THE_DIRECTORY, errno.EIO)
        if self.alive:
            self._durable_names = dict(self._names)

    def free_bytes(self) -> int:
        if self.full:
            return 0
        used = sum(len(content.view) for content in self._names.values())
        return max(0, self.faults.capacity_bytes - used)

    def close(self) -> None:
        pass

    def happens(self, accident: str) -> bool:
        """True, once, if this accident waits."""
        if accident not in self.accidents:
            return False
        self.accidents.remove(accident)
        self.happened.add(accident)
        return True

    def _fail_if(self, accident: str, number: int) -> None:
        if self.happens(accident):
            raise OSError(number, accident)

    def lose(self, name: str) -> None:
        """A file is gone from the disk, without a trace."""
        self._names.pop(name)
        self._durable_names.pop(name, None)

    def flip_bit(self, name: str, position: int, bit: int = 0) -> None:
        """Rot: one bit changed on the disk."""
        content = self._names[name]
        content.view[position] ^= 1 << bit
        if position < len(content.durable):
            content.durable[position] ^= 1 << bit

    def overwrite(self, name: str, position: int, data: bytes) -> None:
        """Rot: these bytes are others on the disk."""
        for target in (self._names[name].view, self._names[name].durable):
            if position + len(data) <= len(target):
                target[position : position + len(data)] = data

    def put(self, name: str, data: bytes) -> None:
        """Store a small file durably, as somebody beside the process does."""
        assert name not in self._names
        content = self._names[name] = self._durable_names[name] = _Content()
        content.apply(0, data)
        content.sync()

    def put_right(self) -> None:
        """The misdirected write is where it belongs, and what it covered is there again."""
        misdirected, self.misdirected = self.misdirected, None
        if misdirected is None:
            return
        for write in self.in_flight:
            if write.begun is None and write.data is misdirected.data:
                write.position = misdirected.position
                return
        misdirected.put_right()

    def _successor(self) -> SimDisk:
        after = SimDisk(self.random, self.faults)
        after.happened = self.happened
        return after

    def copy(self) -> SimDisk:
        """What a copy of the directory holds, made now and kept safe."""
        after = self._successor()
        for name, content in self._names.items():
            after.put(name, bytes(content.view))
        return after

    def crash(self) -> SimDisk:
        """The power is cut: what survived, as the next boot finds it."""
        self._end_in_flight()
        self.alive = False
        after = self._successor()
        for name in sorted({*self._names, *self._durable_names}):
            before, now = self._durable_names.get(name), self._names.get(name)
            survivor = now if before is now else self.random.choice([before, now])
            if survivor is not None:
                after._names[name] = self._survive(survivor)
        after._durable_names = dict(after._names)
        return after

    def restart(self) -> SimDisk:
        """The process is killed, the machine goes on: all that was written is still seen."""
        self._end_in_flight()
        self.alive = False
        after = self._successor()
        after._names = dict(self._names)
        after._durable_names = dict(self._durable_names)
        return after

    def _end_in_flight(self) -> None:
        """The kernel begins each write that it took, or drops it; nobody hears which."""
        for write in self.in_flight:
            if self.random.random() < 0.5:
                write.begin(len(write.data))
        self.in_flight.clear()

    def _check_room(self, size: int) -> None:
        if size >= self.free_bytes():
            raise OSError(errno.ENOSPC, "disk full")

    def _survive(self, content: _Content) -> _Content:
        after = _Content()
        after.durable = bytearray(content.durable)
        for position, data in content.unsynced:
            fate = self.random.random()
            if fate < 0.4:
                _write_into(after.durable, position, data)
            elif fate < 0.7 and data is not None:
                self._tear(after.durable, position, data)
        after.view = bytearray(after.durable)
        return after

    def _tear(self, durable: bytearray, position: int, data: bytes) -> None:
        """Each sector of the write made it or not."""
        if self.random.random() < 0.5:  # a prefix
            data = data[: self.random.randrange(0, len(data) + 1, SECTOR_BYTES)]
            _write_into(durable, position, data)
            return
        for at in range(0, len(data), SECTOR_BYTES):
            if self.random.random() < 0.5:
                _write_into(durable, position + at, data[at : at + SECTOR_BYTES])


class SimLogFile:
    """One open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, content: _Content, *, grows: bool = False) -> None:
        self._disk = disk
        self._content = content
        self._closed = False
        self._grows = grows
        # An aligned write that begins with the next sync.
        self._staged: tuple[int, bytes] | None = None

    def write(self, buffers: Sequence[bytes], position: int) -> None:
        assert not self._closed
        if not self._disk.alive:
            return
        data = b"".join(buffers)
        if self._stages(position, len(data)):
            self._staged = position, data
            return
        self._disk._check_room(max(0, position + len(data) - len(self._content.view)))
        for accident, number in ((FULL_IN_A_WRITE, errno.ENOSPC), (EIO_IN_A_WRITE, errno.EIO)):
            if self._disk.happens(accident):
                self._content.apply(position, data[: self._disk.random.randint(0, len(data))])
                raise OSError(number, accident)
        if position > 0 and self._disk.happens(MISDIRECTED_WRITE):
            position = self._misdirect(position, data)
        self._content.apply(position, data)

    def _stages(self, position: int, size: int) -> bool:
        """True if io_uring takes this write, as `PosixLogFile._write_direct` decides."""
        if not self._disk.faults.uring or not self._grows or self._staged is not None:
            return False
        reserved = position + size <= len(self._content.view)
        return reserved and size > 0 and not (position | size) % BLOCK_BYTES

    def _misdirect(self, position: int, data: bytes) -> int:
        """Return another place for this write."""
        disk, view = self._disk, self._content.view
        wrong = disk.random.randint(0, len(view) // BLOCK_BYTES) * BLOCK_BYTES
        covered = bytes(view[wrong : wrong + len(data)]).ljust(len(data), b"\0")
        disk.misdirected = _Misdirected(self._content, position, wrong, data, covered)
        disk.on_misdirected()
        return wrong

    def sync(self, on_synced) -> None:
        assert not self._closed
        if not self._disk.alive:
            return  # nobody hears of it any more
        if self._staged is not None:
            self._submit(on_synced)
            return
        delay_s = self._disk.random.random() * self._disk.faults.sync_s_max
        if delay_s == 0:
            self._finish(on_synced, len(self._content.unsynced))
            return
        covered = len(self._content.unsynced)
        asyncio.get_running_loop().call_later(delay_s, self._finish, on_synced, covered)

    def _submit(self, on_synced) -> None:
        """Begin the staged write, with a sync behind it if the file has other unsynced bytes."""
        disk, content = self._disk, self._content
        (position, data), self._staged = self._staged, None
        if position > 0 and disk.happens(MISDIRECTED_WRITE):
            position = self._misdirect(position, data)
        write = _InFlight(content, position, data)
        disk.in_flight.append(write)
        submission = Submission(on_synced, data)
        covered = list(content.unsynced)
        submission.left = 2 if covered else 1
        delay_s = disk.random.random() * disk.faults.sync_s_max
        loop = asyncio.get_running_loop()
        if disk.random.random() < 0.5:
            loop.call_later(delay_s * disk.random.random(), self._begin, write)
        loop.call_later(delay_s, self._complete, write, submission, covered)

    def _begin(self, write: _InFlight) -> None:
        if self._disk.alive:
            write.begin(len(write.data))

    def _complete(self, write: _InFlight, submission: Submission, covered: list[object]) -> None:
        """Report what became of a submitted write, and of the sync that is linked to it."""
        disk, size = self._disk, len(write.data)
        if not disk.alive:
            return
        disk.in_flight.remove(write)
        disk.syncs += 1
        result = self._result_of(write)
        whole = result == size
        if whole and not disk.faults.lying_sync:
            assert write.begun is not None
            self._content.settle(write.begun, covered)
        if submission.left == 2:
            submission.complete(size, result)
            size, result = 0, 0 if whole else -errno.ECANCELED
        assert submission.complete(size, result)
        submission.on_done(submission.error)

    def _result_of(self, write: _InFlight) -> int:
        """Return what the kernel reports, bytes or a negative errno. So much of it is written."""
        disk, size = self._disk, len(write.data)
        full = disk.happens(FULL_IN_A_SYNC)
        if full or disk.fail_next_sync or disk.happens(EIO_IN_A_COMPLETION):
            disk.fail_next_sync = disk.fail_next_sync and full
            write.begin(disk.random.randrange(0, size + 1, SECTOR_BYTES))
            return -errno.ENOSPC if full else -errno.EIO
        if disk.happens(SHORT_IN_A_COMPLETION):
            size = disk.random.randrange(0, size, SECTOR_BYTES)
            if write.begun is not None:  # readers may have seen what the disk then lacks
                content = write.content
                content.unsynced = [each for each in content.unsynced if each is not write.begun]
                return size
        write.begin(size)
        return size

    def _finish(self, on_synced, covered: int) -> None:
        if not self._disk.alive:
            return
        self._disk.syncs += 1
        full = self._disk.happens(FULL_IN_A_SYNC)
        if full or self._disk.fail_next_sync:
            self._disk.fail_next_sync = self._disk.fail_next_sync and full
            self._content.unsynced.clear()  # never written, and nobody will try again
            on_synced(OSError(errno.ENOSPC if full else errno.EIO, "sync failed"))
            return
        if not self._disk.faults.lying_sync:
            late = self._content.unsynced[covered:]
            del self._content.unsynced[covered:]
            self._content.sync()
            self._content.unsynced = late
        on_synced(None)

    def expect_reads(self, position: int, size: int) -> None:
        pass

    def read_now(self, position: int, size: int) -> bytes | None:
        self._disk._fail_if(EIO_ON_A_READ, errno.EIO)
        if self._disk.random.random() < 0.3:
            return None
        return bytes(self._content.view[position : position + size])

    async def read(self, position: int, size: int) -> bytes:
        self._disk._fail_if(EIO_ON_A_READ, errno.EIO)
        if self._disk.random.random() < 0.3:
            await asyncio.sleep(self._disk.random.random() * 0.001)
        return bytes(self._content.view[position : position + size])

    def size(self) -> int:
        return len(self._content.view)

    def preallocate(self, position: int, size: int) -> None:
        end = position + size
        if self._disk.alive and end > len(self._content.view) and size < self._disk.free_bytes():
            self._content.apply(end, None)

    def truncate(self, size: int) -> None:
        if self._disk.alive:
            self._content.apply(size, None)

    def close(self) -> None:
        assert not self._closed
        self._closed = True
