"""The memory that requests of all connections of one process share. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple, Protocol

SMALL_FRAME_BYTES: Final = 1024 * 1024
"""Frames up to this size get their buffer in one step, and may use more of the memory."""

STILL_S_MAX: Final = 2.0
"""A sender without a byte for this long is closed as soon as a frame needs its buffer."""

_KEPT_DIVISOR: Final = 4
_KEPT_BYTES_MIN: Final = 1024 * 1024
"""Beginnings of frames use at most one part in `_KEPT_DIVISOR` of the memory, or this much."""

_PAUSED_DIVISOR: Final = 4
"""Connections read little at a time while paused ones hold one part in this of the memory."""

_PASSED_OVER_MAX: Final = 4

_RELIEVED_MAX: Final = 64
"""`relieve` and `waits_for_all` look at one connection of at most this many addresses."""


class Sender(Protocol):
    """The connection of a frame, as far as the memory of requests needs it."""

    @property
    def silent_s(self) -> float:
        """Seconds without a byte from the peer, 0 while this side does not read."""
        ...

    @property
    def held(self) -> bool:
        """True if this side does not read, so the peer cannot complete its frame."""
        ...

    def end_early(self, reason: str) -> None:
        """Close the connection soon, because its memory is needed."""
        ...


class _Gone:
    """The sender of bytes whose connection is gone."""

    silent_s = 0.0
    held = False

    def end_early(self, reason: str) -> None:
        """Do nothing."""


GONE: Final[Sender] = _Gone()


class LargeFrame:
    """A frame with a buffer of its own, from the first request for a buffer until it is taken."""

    __slots__ = ("buffer_bytes", "host", "sender", "size_bytes")

    def __init__(self, host: str, size_bytes: int, sender: Sender) -> None:
        self.host = host
        self.size_bytes = size_bytes  # the size that the peer has announced
        self.sender = sender
        # The size of the buffer, which grows up to `size_bytes`. 0 until it is admitted.
        self.buffer_bytes = 0


class KeptBytes:
    """The received bytes that one connection keeps, outside of large buffers."""

    __slots__ = ("count", "ended", "host", "paused", "sender")

    def __init__(self, host: str, sender: Sender) -> None:
        self.host = host
        self.sender = sender
        self.count = 0  # as counted in `used_bytes`
        # True while the bytes are counted as those of a connection that is not read. They may be
        # whole frames. Otherwise they are the beginning of one frame.
        self.paused = False
        # True once the connection was told to close. Its bytes stay counted until it is closed.
        self.ended = False


class WaitingFrame(NamedTuple):
    """A connection that stopped reading for lack of memory."""

    on_memory: Callable[[], None]
    host: str
    frame: LargeFrame | None  # the frame that needs a larger buffer, None for any request
    buffer_bytes: int
    since_s: float  # time of the loop when the connection stopped


class RequestMemory:
    """Bytes of all requests that are being received or processed in this process.

    A frame is charged for its buffer, which grows as bytes arrive. So a peer pays for what it has
    sent, not for what it announced. A frame up to `SMALL_FRAME_BYTES` has its whole buffer once it
    has filled the scratch buffer, and leaves sooner if it arrives slowly. Frames above that may use
    three quarters of the memory, smaller frames seven eighths, and one address half of that, or one
    frame of the largest size. So slow peers with large frames stop neither small requests nor other
    addresses. With requests in processing, one address may use five eighths. Each address may use
    `SMALL_FRAME_BYTES` more than the largest frame, so that such a frame stops no small request.

    Beginnings of small frames use a quarter of the memory. If they need more, the address with most
    of these bytes loses its oldest incomplete frames. An address that keeps few bytes is never
    asked. Connections that are not read are not closed, because they may keep whole frames, and
    their peers cannot go on. Their bytes count as requests, up to a quarter of the memory. Beyond
    that, and while requests have to wait, connections read little at a time (`narrow`).

    A frame that has begun can be completed: a buffer grows only if all frames that have begun could
    still be received to their ends, one after another (the banker's algorithm). If a frame has to
    wait, senders that stand still are closed for it.
    """

    def __init__(self, total_bytes_max: int, frame_bytes_max: int) -> None:
        # Bytes taken and not given back. May exceed the total by the frames of one turn of the
        # loop.
        self.used_bytes = 0
        # The part of `used_bytes` in beginnings of frames, which connections keep outside of large
        # buffers. They do not keep large frames from growing, which may have to end before them.
        self._kept_bytes = 0
        self._kept_bytes_max = max(_KEPT_BYTES_MIN, total_bytes_max // _KEPT_DIVISOR)
        # The part of `used_bytes` that connections keep which are not read. What exceeds
        # `_paused_bytes_max` stops no requests: they could wait only for each other.
        self._paused_bytes = 0
        self._paused_bytes_max = total_bytes_max // _PAUSED_DIVISOR
        self._paused_by_host: dict[str, int] = {}  # the same, by address; no value is 0
        self._total_bytes_max = total_bytes_max
        # An address has more for requests in processing than for large buffers, so that these stop
        # no small request.
        self._requests_of_host_max = max(
            frame_bytes_max + SMALL_FRAME_BYTES, total_bytes_max * 5 // 8
        )
        self._frame_bytes_max = frame_bytes_max
        # The kept bytes of each address by connection, the oldest frame first. A connection is in
        # the table while its `count` is positive, unless it is paused or was told to close. The
        # second table has the sums, and the same keys.
        self._kept: dict[str, dict[KeptBytes, None]] = {}
        self._kept_by_host: dict[str, int] = {}
        # The frames with buffers, in the order of their first ones.
        self._frames: dict[LargeFrame, None] = {}
        # The frames of senders that were told to close, until they are closed. The value is the
        # part of the buffer that no connection has been promised yet.
        self._ending: dict[LargeFrame, int] = {}
        # The bytes of these buffers and of requests in processing, by the address of their
        # connections. No value is 0.
        self._by_host: dict[str, int] = {}
        # Connections of each address that stopped reading for lack of memory. `notify` puts an
        # address to the end when it was looked at, and within it a connection that was passed over.
        self._waiting: dict[str, deque[WaitingFrame]] = {}

    def full(self, host: str) -> bool:
        """True if requests of this address have to wait."""
        return (
            self._by_host.get(host, 0) >= self._requests_of_host_max
            # `_used_up` can only hold then; checked here because each request asks.
            or (self.used_bytes >= self._total_bytes_max and self._used_up)
        )

    def crowded(self, host: str) -> bool:
        """True if requests in processing alone use the memory, of this address or of all.

        A large frame that is whole has to wait then, because its request may take more memory than
        its buffer. It waits for no buffer, which might wait for the frame.
        """
        buffers = of_host = 0
        for each in self._frames:
            buffers += each.buffer_bytes
            if each.host == host:
                of_host += each.buffer_bytes
        others = buffers + self._kept_bytes + self._paused_bytes
        return (
            self._by_host.get(host, 0) - of_host >= self._requests_of_host_max
            or self.used_bytes - others >= self._total_bytes_max
        )

    def narrow(self, host: str) -> bool:
        """True if connections of this address should read little at a time."""
        paused = self._paused_by_host.get(host, 0)
        return (
            self.full(host)
            or self._paused_bytes >= self._paused_bytes_max
            or paused >= self._paused_bytes_max // 2
        )

    @property
    def _used_up(self) -> bool:
        uncounted = max(0, self._paused_bytes - self._paused_bytes_max)
        return self.used_bytes - uncounted >= self._total_bytes_max

    @property
    def waits_since_s(self) -> float | None:
        """When the connection stopped that has waited longest, or None if none waits."""
        waiting = (each.since_s for line in self._waiting.values() for each in line)
        return min(waiting, default=None)

    def hosts_that_wait(self, since_s: float) -> set[str]:
        """Return the addresses of which a connection has waited since this time, or longer."""
        return {
            host
            for host, line in self._waiting.items()
            if any(each.since_s <= since_s for each in line)
        }

    def take(self, host: str, count: int) -> bool:
        """Count `count` bytes of a request of this address. Return whether the next have to wait.

        This is `full`, without a second look at the address: each request comes here.
        """
        self.used_bytes += count
        by_host = self._by_host
        if count:
            count += by_host.get(host, 0)
            by_host[host] = count
        else:
            count = by_host.get(host, 0)
        if count >= self._requests_of_host_max:
            return True
        return self.used_bytes >= self._total_bytes_max and self._used_up

    def give(self, host: str, count: int) -> None:
        """Return `count` bytes of a request, which are more than none."""
        by_host = self._by_host
        left = by_host[host] - count
        assert left >= 0
        if left:
            by_host[host] = left
        else:
            del by_host[host]
        self.used_bytes -= count
        assert self.used_bytes >= 0
        if self._waiting:
            self.notify()

    def keep(self, kept: KeptBytes, count: int, *, begins: bool) -> None:
        """Count the bytes that a connection keeps. `begins` if they belong to another frame."""
        more = count - kept.count
        if not kept.ended:
            self._list(kept, count, paused=kept.sender.held, begins=begins)
        kept.count = count
        if more > 0:
            self.used_bytes += more
            self._bound_kept()
        else:
            self._return(-more)

    def _list(self, kept: KeptBytes, count: int, *, paused: bool, begins: bool) -> None:
        """Update the tables for `kept`, which has `count` bytes now."""
        before = kept.count
        if kept.paused:
            self._list_paused(kept.host, -before)
            before = 0
        kept.paused = paused
        if paused:
            self._list_paused(kept.host, count)
            count = 0
        if before or count:
            self._list_kept(kept, count, count - before, begins=begins)

    def _list_paused(self, host: str, more: int) -> None:
        self._paused_bytes += more
        _add(self._paused_by_host, host, more)

    def _list_kept(self, kept: KeptBytes, count: int, more: int, *, begins: bool) -> None:
        """Update the tables of kept bytes: `kept` has grown by `more` to `count`."""
        host = kept.host
        line = self._kept.setdefault(host, {})
        self._kept_bytes += more
        left = self._kept_by_host[host] = self._kept_by_host.get(host, 0) + more
        if begins or not count:
            line.pop(kept, None)
        if count:
            line[kept] = None
        if not left:
            del self._kept[host], self._kept_by_host[host]

    def _bound_kept(self) -> None:
        """Close the oldest incomplete frames of the address with most kept bytes."""
        by_host = self._kept_by_host
        while self._kept_bytes > self._kept_bytes_max:
            line = self._kept[max(by_host, key=by_host.__getitem__)]
            victim = next(iter(line))
            if victim.sender.held:
                self._list(victim, victim.count, paused=True, begins=False)
                continue
            self._list_kept(victim, 0, -victim.count, begins=True)
            victim.ended = True
            victim.sender.end_early(
                "half a frame while its address has most bytes of incomplete requests"
            )

    def admits(self, frame: LargeFrame, buffer_bytes: int) -> bool:
        """Return whether the buffer of `frame` may grow to `buffer_bytes` now."""
        more = buffer_bytes - frame.buffer_bytes
        limit = self._limit(frame.size_bytes)
        return (
            self.used_bytes - self._kept_bytes - self._paused_bytes + more <= limit
            and not self._exceeds_share(frame, more)
            and (frame.size_bytes <= SMALL_FRAME_BYTES or self._can_complete(frame, more))
        )

    def grow(self, frame: LargeFrame, buffer_bytes: int) -> None:
        """Count the buffer of `frame`, which grows to `buffer_bytes`."""
        more = buffer_bytes - frame.buffer_bytes
        frame.buffer_bytes = buffer_bytes
        self._frames[frame] = None
        self.take(frame.host, more)

    def end(self, frame: LargeFrame) -> None:
        """Forget the buffer of a frame that was taken or dropped. Call `notify` later.

        A frame that was taken may become a request in processing, which is counted first.
        """
        if frame not in self._frames:
            return
        del self._frames[frame]
        self._ending.pop(frame, None)
        self.used_bytes -= frame.buffer_bytes
        self._charge(frame.host, -frame.buffer_bytes)

    def wait(self, waiting: WaitingFrame) -> None:
        """Run `on_memory` once, when there is memory.

        Other connections may have taken it before the connection does.
        """
        self._waiting.setdefault(waiting.host, deque()).append(waiting)
        self._end_still_senders(waiting)

    def waits_for_share(self, waiting: WaitingFrame) -> bool:
        """True if a connection waits for the share of its address, not for that of all."""
        frame = waiting.frame
        if frame is None:
            return not self._used_up
        more = waiting.buffer_bytes - frame.buffer_bytes
        if self._exceeds_share(frame, more):
            return True
        if frame.size_bytes <= SMALL_FRAME_BYTES or self._can_complete(frame, more):
            return False
        return self._can_complete(frame, more, shares=False)

    def waits_for_all(self, since_s: float) -> bool:
        """True if a connection has waited since this time for memory that all addresses share."""
        for line in islice(self._waiting.values(), _RELIEVED_MAX):
            first = next((each for each in line if each.since_s <= since_s), None)
            if first is not None and not self.waits_for_share(first):
                return True
        return False

    def leave(self, waiting: WaitingFrame) -> None:
        """Wait no longer, because the connection is lost."""
        line = self._waiting.get(waiting.host)
        if line is not None and waiting in line:
            line.remove(waiting)
            if not line:
                del self._waiting[waiting.host]

    def notify(self) -> None:
        """Call `on_memory` of waiting connections, of as many as the free memory suffices for."""
        due: list[WaitingFrame] = []
        passed_over = promised = 0
        while self._waiting and passed_over < _PASSED_OVER_MAX:
            if self._used_up:
                break
            host = next(iter(self._waiting))
            line = self._waiting.pop(host)
            waiting = line.popleft()
            self.used_bytes += promised
            fits = self._fits(waiting)
            self.used_bytes -= promised
            if fits:
                frame = waiting.frame
                promised += 0 if frame is None else waiting.buffer_bytes - frame.buffer_bytes
                due.append(waiting)
            else:
                passed_over += 1
                line.append(waiting)
            if line:
                self._waiting[host] = line
        for waiting in due:
            waiting.on_memory()

    def relieve(self) -> None:
        """Close senders that stand still, for the frames that wait."""
        for line in list(islice(self._waiting.values(), _RELIEVED_MAX)):
            self._end_still_senders(line[0])

    def _fits(self, waiting: WaitingFrame) -> bool:
        if waiting.frame is None:
            return not self.full(waiting.host)
        return self.admits(waiting.frame, waiting.buffer_bytes)

    def _end_still_senders(self, waiting: WaitingFrame) -> None:
        """Close as many senders that stand still as a waiting connection needs.

        Only those of its own address if the share of the address is used up. Buffers of senders
        that were told to close, as far as no other connection was promised them, are used first.
        """
        if self._fits(waiting):
            return
        frame = waiting.frame
        more = 1 if frame is None else waiting.buffer_bytes - frame.buffer_bytes
        host = waiting.host if self.waits_for_share(waiting) else None
        for each, left in self._ending.items():
            if host is None or each.host == host:
                used = min(more, left)
                self._ending[each] = left - used
                more -= used
        still = [
            each
            for each in self._frames
            if each not in self._ending
            and (host is None or each.host == host)
            and each.sender.silent_s >= STILL_S_MAX
        ]
        still.sort(key=lambda each: self._by_host[each.host], reverse=True)
        for each in still:
            if more <= 0:
                return
            self._ending[each] = max(0, each.buffer_bytes - more)
            more -= each.buffer_bytes
            each.sender.end_early("stands still within a request while its memory is needed")

    def _exceeds_share(self, frame: LargeFrame, more: int) -> bool:
        limit = self._host_limit(self._limit(frame.size_bytes))
        if frame.size_bytes <= SMALL_FRAME_BYTES:
            limit = max(limit, self._frame_bytes_max + SMALL_FRAME_BYTES)
        return self._by_host.get(frame.host, 0) + more > limit

    def _charge(self, host: str, more: int) -> None:
        _add(self._by_host, host, more)

    def _return(self, count: int) -> None:
        self.used_bytes -= count
        assert self.used_bytes >= 0
        if self._waiting:
            self.notify()

    def _limit(self, frame_bytes: int) -> int:
        """Return how much memory may be used when the buffer of a frame of this size grows."""
        left_for_others = self._total_bytes_max // (8 if frame_bytes <= SMALL_FRAME_BYTES else 4)
        return max(self._frame_bytes_max, self._total_bytes_max - left_for_others)

    def _host_limit(self, limit: int) -> int:
        return max(self._frame_bytes_max, limit // 2)

    def _can_complete(self, grown: LargeFrame, more: int, *, shares: bool = True) -> bool:
        """Return whether all frames can be completed in some order after `grown` took `more` bytes.

        Requests that are being processed are not counted, because they return their memory by
        themselves. Without `shares`, one address may use all of the memory.
        """
        limit = self._limit(self._frame_bytes_max)
        host_limit = self._host_limit(limit) if shares else limit
        missing: list[tuple[int, int, str]] = []
        for each in self._frames:
            held = each.buffer_bytes + (more if each is grown else 0)
            missing.append((each.size_bytes - held, held, each.host))
        if grown not in self._frames:
            missing.append((grown.size_bytes - more, more, grown.host))
        missing.sort()
        free = limit - sum(held for _, held, _ in missing)
        host_free = {host: host_limit for _, _, host in missing}
        for _, held, host in missing:
            host_free[host] -= held
        while missing:
            stuck: list[tuple[int, int, str]] = []
            for needs, held, host in missing:
                if needs <= 0 or (needs <= free and needs <= host_free[host]):
                    free += held
                    host_free[host] += held
                else:
                    stuck.append((needs, held, host))
            if len(stuck) == len(missing):
                return False
            missing = stuck
        return True


def _add(sums: dict[str, int], host: str, more: int) -> None:
    """Add to the sum of this address. A sum of 0 is removed."""
    left = sums.get(host, 0) + more
    assert left >= 0
    if left:
        sums[host] = left
    else:
        sums.pop(host, None)
