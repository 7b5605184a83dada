"""The native API: read topics and streams record by record, with typed gaps; write own logs.

    connect("zk://host:port/chroot")      a cluster
    connect("grpc://127.0.0.1:3181")      the ledger port of `gateway dev`, for reading only

Applications import this module alone. See docs/native_api.md.
Source: seed 002, "Read API"; LogDevice, `include/Reader.h`; DistributedLog, "Transaction ids".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.storage import CONNECT_S, ReadStorage, open_storage, read_topic
from gateway.topics.partitions import stream_name
from gateway.wire import batches
from ledger.adapters.system.clock import SystemClock
from ledger.core.deliveries import StreamRecord
from ledger.core.gaps import Evidence, Gap, GapKind, OffsetRange, Position
from ledger.errors import InvalidArgument, LedgerError, WrongState
from ledger.ids import Dlsn
from ledger.streams.config import StreamConfig, StreamLimits
from ledger.streams.log_reader import BUFFER_BYTES, LogReader, Waiting
from ledger.streams.log_writer import LogWriter
from ledger.streams.services import StreamServices
from ledger.streams.stream_seek import (
    After,
    Edge,
    Offset,
    Time,
    TimestampMax,
    TransactionId,
)

# Small entries, so that neither end of a log of small records blocks the loop of its application
# for more than a few milliseconds. Nobody reads the tail cache of a native writer.
_LIMITS: Final = StreamLimits(entry_bytes_max=64 * 1024, tail_cache_bytes=0)

EARLIEST: Final = Edge.EARLIEST
LATEST: Final = Edge.LATEST

__all__ = [
    "EARLIEST",
    "LATEST",
    "After",
    "Dlsn",
    "Evidence",
    "Gap",
    "GapKind",
    "InvalidArgument",
    "JobError",
    "LedgerError",
    "LogReader",
    "LogWriter",
    "Logs",
    "Offset",
    "OffsetRange",
    "Position",
    "StreamConfig",
    "StreamRecord",
    "Time",
    "TransactionId",
    "Waiting",
    "WrongState",
    "connect",
]


class Logs:
    """The streams and topics of one storage. Create it with `connect`."""

    def __init__(self, address: str, storage: ReadStorage) -> None:
        self._address = address
        self._storage = storage
        # Shared by all writers of this connection.
        self._services = StreamServices(storage.store, storage.client, SystemClock(), _LIMITS)

    def reader(
        self,
        stream: str,
        *,
        timestamp_max: TimestampMax | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> LogReader:
        """Return a reader of the stream of that name, to be started and stopped by the caller.

        `timestamp_max` returns the greatest timestamp in the data of a record, in ms since 1970;
        without it the reader cannot start at a time. Up to about `buffer_bytes` bytes are read
        ahead. Any number of readers may read a stream.
        """
        storage = self._storage
        return LogReader(
            stream,
            storage.store,
            storage.client,
            timestamp_max=timestamp_max,
            buffer_bytes=buffer_bytes,
        )

    async def topic_reader(
        self, topic: str, partition: int, *, buffer_bytes: int = BUFFER_BYTES
    ) -> LogReader:
        """Return a reader of one partition of a topic. Each record is a Kafka record batch.

        Raises JobError for an unknown topic or metadata that cannot be read, and InvalidArgument
        for an unknown partition.
        """
        found = await read_topic(self._storage.store, topic)
        if not 0 <= partition < found.partitions:
            raise InvalidArgument(
                f"topic {topic} has the partitions 0 to {found.partitions - 1}, not {partition}"
            )
        return self.reader(
            stream_name(found.topic_id, partition),
            timestamp_max=batches.timestamp_max,
            buffer_bytes=buffer_bytes,
        )

    def writer(self, stream: str, config: StreamConfig | None = None) -> LogWriter:
        """Return a writer of a stream that no topic owns, to be opened and closed by the caller.

        Raises InvalidArgument for a name of a topic's stream, and for a grpc:// address.
        """
        if self._address.startswith("grpc://"):
            raise InvalidArgument(
                f"{self._address} serves readers only: to write, connect to zk://host:port/chroot"
            )
        return LogWriter(stream, self._services, config)


@asynccontextmanager
async def connect(
    address: str,
    *,
    ca: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    bookie_tls_roles: str = "required",
    bookie_transport: str = "tcp",
    connect_s: float = CONNECT_S,
) -> AsyncGenerator[Logs]:
    """Connect to the storage at `address`, for the time of the `async with` block.

    `ca`, `certificate` and `key` are PEM files, for bookies that require client certificates. A
    reader needs the role reader, a writer the role gateway. `bookie_tls_roles` is off if bookies
    have no roles yet, `bookie_transport` is tcp or grpc.
    Raises JobError with the remedy if the storage does not answer within `connect_s` seconds.
    """
    async with open_storage(
        *(address, ca, certificate, key, bookie_tls_roles),
        transport=bookie_transport,
        connect_s=connect_s,
    ) as storage:
        yield Logs(address, storage)
