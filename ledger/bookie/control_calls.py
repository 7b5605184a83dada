"""The control calls of a bookie, on any transport: a message in, a message out. Most are protobuf.

Each request names the bookie instance that it addresses; another instance answers WRONG_INSTANCE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from google.protobuf.message import DecodeError, Message

from ledger.bookie.config import ENTRY_BYTES_MAX
from ledger.bookie.served_bookie import ServedBookie
from ledger.ids import EntryId, LedgerId
from ledger.ports.bookies import EntriesReply, LocateReply, ReadReply, Status
from ledger.wire import bookie_pb2 as pb
from ledger.wire.bookie_frames import VERSION, BadBookieFrame
from ledger.wire.fence_frames import BODIES_BYTES_MAX, decode_fences, encode_fence_replies
from ledger.wire.locate_frames import decode_locate, encode_locate_reply

_RUNS = 4096  # ranges of a list that are encoded in one turn of the loop

ControlCall = Callable[[bytes], Awaitable[bytes]]
"""A call: the request in, the response out. Raises BadBookieFrame for a request that is invalid."""


class ControlCalls:
    """The control calls of one bookie."""

    def __init__(self, bookie: ServedBookie, fencing: asyncio.Semaphore) -> None:
        """`fencing` is held while entries are read for `FenceMany`. Views of a bookie share it."""
        self._bookie = bookie
        self._fencing = fencing

    def by_name(self) -> Mapping[str, ControlCall]:
        """Return all calls that every transport has, by name."""
        return {
            "Info": self._info,
            "ReadLac": self._read_lac,
            "WriteLac": self._write_lac,
            "ListEntries": self._list_entries,
            "EndLimbo": self._end_limbo,
            "Stats": self._stats,
            "Locate": self._locate,
        }

    def over_tcp(self) -> Mapping[str, ControlCall]:
        """Return all calls, with the one that only connections over TCP have."""
        return {**self.by_name(), "FenceMany": self._fence_many}

    async def _fence_many(self, request: bytes) -> bytes:
        name, ledgers = decode_fences(request)
        if not self._is_this_bookie(name):
            return encode_fence_replies([ReadReply(Status.WRONG_INSTANCE)] * len(ledgers))
        async with self._fencing:  # bounds the entries in memory
            return encode_fence_replies(await self._bookie.fence_many(ledgers, BODIES_BYTES_MAX))

    async def _info(self, request: bytes) -> bytes:
        _parse(request, pb.InfoRequest())
        bookie = self._bookie
        return pb.InfoReply(
            bookie=bookie.bookie_id,
            frame_version=VERSION,
            entry_bytes_max=ENTRY_BYTES_MAX,
            writable=bookie.writable,
        ).SerializeToString()

    async def _read_lac(self, data: bytes) -> bytes:
        request = _ledger_request(data)
        if not self._is_this_bookie(request.bookie):
            return pb.LacReply(status=Status.WRONG_INSTANCE, lac=-1).SerializeToString()
        reply = await self._bookie.read_lac(LedgerId(request.ledger))
        return pb.LacReply(status=reply.status, lac=reply.lac).SerializeToString()

    async def _write_lac(self, data: bytes) -> bytes:
        request = _ledger_request(data)
        status = Status.WRONG_INSTANCE
        if self._is_this_bookie(request.bookie):
            ledger, lac = LedgerId(request.ledger), EntryId(request.lac)
            status = await self._bookie.write_lac(ledger, request.master_key, lac)
        return pb.StatusReply(status=status).SerializeToString()

    async def _end_limbo(self, data: bytes) -> bytes:
        request = _ledger_request(data)
        status = Status.WRONG_INSTANCE
        if self._is_this_bookie(request.bookie):
            status = await self._bookie.end_limbo(
                LedgerId(request.ledger), request.master_key, request.start
            )
        return pb.StatusReply(status=status).SerializeToString()

    async def _list_entries(self, data: bytes) -> bytes:
        request = _ledger_request(data)
        reply = EntriesReply(Status.WRONG_INSTANCE)
        if self._is_this_bookie(request.bookie):
            reply = await self._bookie.list_entries(LedgerId(request.ledger))
        runs: list[int] = []
        at = 0
        for number, (first, last) in enumerate(reply.runs, 1):
            runs += (first - at, last - first + 1)
            at = last + 1
            if number % _RUNS == 0:
                await asyncio.sleep(0)
        return pb.EntriesReply(status=reply.status, runs=runs).SerializeToString()

    async def _stats(self, data: bytes) -> bytes:
        request = pb.StatsRequest()
        _parse(data, request)
        if not self._is_this_bookie(request.bookie):
            return pb.StatsReply(status=Status.WRONG_INSTANCE).SerializeToString()
        stats = await self._bookie.stats()
        return pb.StatsReply(
            status=stats.status,
            disk_bytes=stats.disk_bytes,
            free_bytes=stats.free_bytes,
            ledgers=stats.ledgers,
            writable=stats.writable,
            time_ms=stats.time_ms,
            release=stats.release,
            syncs=stats.syncs,
            sync_us=stats.sync_us,
        ).SerializeToString()

    async def _locate(self, data: bytes) -> bytes:
        request = decode_locate(data)
        reply = LocateReply(Status.WRONG_INSTANCE)
        if self._is_this_bookie(request.bookie):
            reply = await self._bookie.locate(request.ledger, request.entry)
        return encode_locate_reply(reply)

    def _is_this_bookie(self, bookie: str) -> bool:
        return bookie == self._bookie.bookie_id


def _parse(data: bytes, message: Message) -> None:
    """Parse `data` into `message`. Raises BadBookieFrame."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadBookieFrame(f"a control call that does not parse: {error}") from error


def _ledger_request(data: bytes) -> pb.LedgerRequest:
    """Parse and check a request about one ledger. Raises BadBookieFrame."""
    request = pb.LedgerRequest()
    _parse(data, request)
    if request.ledger < 0 or request.lac < -1:
        raise BadBookieFrame(f"invalid ledger {request.ledger} or LAC {request.lac}")
    return request
