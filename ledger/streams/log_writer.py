"""The native writer of a stream that no topic owns: own records, own transaction ids.

    open ─▶ append, append, … ─▶ close        a failed writer may be opened again

`open` takes the stream over as an owner of a topic's stream does: it fences the segment in
progress, so that the writer before it can acknowledge nothing more. Segments, rolls, truncation and
retention are those of `Stream`.
Source: DistributedLog, "Writing" and "Transaction ids" (seed 000, D54).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from uuid import UUID

from ledger.core.sparse_index import NO_TIMESTAMP
from ledger.errors import InvalidArgument, LedgerError, NodeExists, NotOwner, WrongState
from ledger.streams.config import StreamConfig
from ledger.streams.plain_log import LogQuorum
from ledger.streams.segment_store import create_streams
from ledger.streams.services import StreamServices
from ledger.streams.stream import Stream

RECORD_BYTES_MAX = 1024 * 1024
"""The largest record that a writer takes."""

IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of records that are not durable yet. Further appends wait."""

TXID_MAX = 2**63 - 1
_CONTROL_MS = 100  # until other processes see the last record
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def check_name(name: str) -> None:
    """Raise InvalidArgument unless a stream without a topic may have this name."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"stream name {name!r}: 1 to 200 of A-Z a-z 0-9 . _ - are allowed, the first a letter "
            "or a digit"
        )
    if _is_of_a_topic(name):
        raise InvalidArgument(
            f"stream name {name!r}: names like <uuid>-<number> belong to topics, and the search "
            "for orphans would delete it"
        )


def _is_of_a_topic(name: str) -> bool:
    """Return whether a broker takes the stream for that of a topic, `<topic id>-<partition>`.

    It reads the id as Python does, in other spellings too, and deletes streams without a topic.
    """
    try:
        UUID(name.rpartition("-")[0])
    except ValueError:
        return False
    return True


class _NoState:
    """The state of an owner that keeps none beside its records."""

    def encode(self, end_sequence_id: int) -> bytes:
        return b""

    def load(self, data: bytes) -> Iterator[None]:
        return iter(())

    def replay(self, sequence_id: int, data: memoryview) -> None:
        pass

    def pass_loss(self, first: int, last: int) -> None:
        pass

    def timestamp_max(self, data: memoryview) -> int:
        return NO_TIMESTAMP


class LogWriter:
    """The writer of one stream. Safe to use from many tasks of one event loop."""

    def __init__(
        self, name: str, services: StreamServices, config: StreamConfig | None = None
    ) -> None:
        """Without `config` there are three copies, acknowledged by two, and no retention.

        Raises InvalidArgument for a name that no such stream may have.
        """
        check_name(name)
        self.name = name
        # The transaction id of the last accepted record, 0 if there is none. Set by `open`.
        self.last_txid = 0
        self._services = services
        self._config = config or default_config()
        # The owner's stream, from `open` until `close`.
        self._stream: Stream | None = None
        # The error that ended the ownership. Cleared by `open`.
        self._failed: LedgerError | None = None
        # Bytes of records that were accepted and not answered.
        self._in_flight_bytes = 0
        # Set when a record was answered.
        self._answered = asyncio.Event()
        # Held while an append waits for room, so that appends keep the order of their calls.
        self._order = asyncio.Lock()

    async def open(self) -> None:
        """Create the stream if it does not exist, and take it over from any other writer.

        Raises NotEnoughBookies, MetadataUnavailable and EntryUnknown, after which it may be
        repeated, and WrongState while it is open.
        """
        if self._stream is not None and self._failed is None:
            raise WrongState(f"{self.name}: this writer is open")
        before, self._stream = self._stream, None
        if before is not None:
            await before.abandon()
        try:
            await create_streams(self._services.metadata, [self.name])
        except NodeExists:
            pass
        stream = Stream(
            self.name,
            self._services,
            lambda: self._config,
            _NoState(),
            on_advanced=lambda end: None,
            on_failed=self._on_failed,
        )
        stream.own_txids = True
        self._failed = None
        try:
            await stream.open(begin=True)
            if not stream.writable:
                await stream.begin()
        except BaseException:
            await stream.abandon()
            raise
        self._stream, self.last_txid = stream, stream.txid_max

    def _on_failed(self, error: LedgerError) -> None:
        self._failed = self._failed or error

    async def append(self, data: bytes, txid: int) -> int:
        """Append one record, and return its offset once it is durable.

        The offset is the number of records before it. Raises InvalidArgument if `txid` is below
        the last one (an equal one is taken), or for a record that is too large; nothing was
        written then. Raises Fenced, NotOwner or AddFailed if another writer took over or the
        bookies failed: the record may turn out to be durable, and the writer must be opened again.
        """
        size = len(data)
        if size > RECORD_BYTES_MAX:
            raise InvalidArgument(
                f"{self.name}: a record of {size} bytes; at most {RECORD_BYTES_MAX} are allowed"
            )
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with self._order:
            await self._wait_for_room(size)
            stream = self._check(txid)
            offset = stream.next_sequence_id

            def on_durable(error: LedgerError | None) -> None:
                self._in_flight_bytes -= size
                self._answered.set()
                if answer.done():  # the caller was cancelled
                    return
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)

            stream.append((data,), size, 1, NO_TIMESTAMP, on_durable, txid)
            self._in_flight_bytes += size
            self.last_txid = txid
        await answer
        stream.roll_if_old()
        return offset

    async def _wait_for_room(self, size: int) -> None:
        while self._in_flight_bytes and self._in_flight_bytes + size > IN_FLIGHT_BYTES_MAX:
            self._answered.clear()
            await self._answered.wait()

    def _check(self, txid: int) -> Stream:
        stream = self._opened()
        if not stream.writable:
            raise self._failed or NotOwner(f"{self.name}: this writer does not own the stream")
        if not 0 <= txid <= TXID_MAX:
            raise InvalidArgument(f"{self.name}: transaction id {txid}: must be 0 to {TXID_MAX}")
        if txid < self.last_txid:
            raise InvalidArgument(
                f"{self.name}: transaction id {txid} is below the last one, {self.last_txid}"
            )
        return stream

    def _opened(self) -> Stream:
        if self._stream is None:
            raise WrongState(f"{self.name}: this writer is not open")
        return self._stream

    async def truncate(self, offset: int) -> None:
        """Delete the records below `offset`, durably. Raises Truncated if it is past the end."""
        stream = self._opened()
        await stream.truncate(offset)
        await stream.expire()

    async def close(self) -> None:
        """Wait until all accepted records are durable, and complete the segment.

        Raises the error that ended the ownership; the next `open` then recovers.
        """
        stream = self._opened()
        self._stream = None
        try:
            await stream.close()
        finally:
            await stream.abandon()


def default_config() -> StreamConfig:
    """Return the settings of a stream of three copies that keeps everything."""
    quorum = LogQuorum.majority_of(3)
    return StreamConfig(
        ensemble_size=quorum.ensemble,
        write_quorum=quorum.write,
        ack_quorum=quorum.ack,
        retention_ms=-1,
        control_ms=_CONTROL_MS,
    )
