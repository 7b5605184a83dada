"""Read-only access to storage without a gateway: metadata, and ledgers on their bookies.

    zk://host:port,host:port/chroot   a cluster: ZooKeeper, bookies over TCP; also without `zk://`
    grpc://127.0.0.1:3181             the ledger port of `gateway dev`, on the same machine

Readers never write to storage and never fence a ledger.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.pipelines.shared.errors import JobError
from gateway.topics.catalog import IDS, NAMES, Topic, decode_topic
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.errors import (
    AccessDenied,
    CorruptFormat,
    ForeignLayout,
    InvalidArgument,
    LedgerError,
    MetadataUnavailable,
    NoNode,
)
from ledger.ports.bookies import BookieTransport
from ledger.ports.metadata import MetadataStore
from ledger.registry.discovery import Discovery
from ledger.registry.layout import read_instance_id

_SESSION_MS = 30_000  # readers hold no ephemeral nodes, so a long session does no harm
CONNECT_S = 5.0
_RETRY_S = 0.1
_GRPC = "grpc://"
_ZOOKEEPER = "zk://"
_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_SERVERS = re.compile(rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/[^/,\s\0]+)*")
_SERVER = re.compile(rf"({_HOST}):(\d{{1,5}})/?")


@dataclass(frozen=True, slots=True)
class ReadStorage:
    """The metadata store and the ledger client of a reader."""

    store: MetadataStore
    client: LedgerClient


@asynccontextmanager
async def open_storage(
    metadata: str,
    ca: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    roles: str = "required",
    *,
    transport: str = BookieTransport.TCP,
    connect_s: float = CONNECT_S,
    zookeeper: Mapping[str, str] | None = None,
) -> AsyncGenerator[ReadStorage]:
    """Connect to the storage that `metadata` names. Raises JobError with the remedy.

    `ca`, `certificate` and `key` are PEM files, for bookies that require client certificates;
    `roles` is off if these have no roles yet.
    `transport` is how bookies are reached, tcp or grpc; the ledger port has only gRPC. A server
    counts as unreachable if it does not answer within `connect_s` seconds. `zookeeper` are keys of
    the identity and the TLS there; without them, the variables GATEWAY_ZOOKEEPER_* name both.
    """
    tls = _tls(ca, certificate, key, roles=roles)
    loop = asyncio.get_running_loop()
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_report_exception)
    stops: list[Callable[[], Awaitable[None]]] = []
    try:
        store = await _connect(metadata, connect_s, zookeeper or {})
        stops.append(store.close)
        yield await _open(metadata, store, tls, _transport(metadata, transport), stops)
    finally:
        while stops:
            await stops.pop()()


def _report_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an exception in a callback, unless it concerns a loop that has ended.

    gRPC completes the calls of all loops of a process through one queue, from which any loop takes.
    A job runs one loop after the other, and what completes after its loop has ended is not needed.
    """
    late = "PollerCompletionQueue" in context.get("message", "")
    if not (late and str(context.get("exception")) == "Event loop is closed"):
        loop.default_exception_handler(context)


async def _open(
    metadata: str,
    store: MetadataStore,
    tls: TlsFiles | None,
    transport: BookieTransport,
    stops: list[Callable[[], Awaitable[None]]],
) -> ReadStorage:
    from ledger.adapters.links.tls_identity import TlsFault
    from ledger.adapters.open_bookies import open_bookies

    discovery = Discovery(store)
    try:
        port = metadata.startswith(_GRPC)
        await read_instance_id(store, "" if port else metadata.removeprefix(_ZOOKEEPER))
        await discovery.start()
    except MetadataUnavailable as error:
        raise _unreachable(metadata, error) from error
    except ForeignLayout as error:
        raise JobError(f"metadata {metadata}: {error}", "NO_CLUSTER") from error
    stops.append(discovery.stop)
    try:
        bookies = open_bookies(discovery.registered, transport, tls)
    except TlsFault as fault:
        raise JobError(f"TLS: {fault}", "USAGE") from fault
    stops.append(bookies.close)
    return ReadStorage(store, LedgerClient(store, bookies, SystemClock(), LedgerClientConfig()))


async def _connect(metadata: str, connect_s: float, zookeeper: Mapping[str, str]) -> MetadataStore:
    """Connect to the metadata store and wait for an answer. Raises JobError."""
    if metadata.startswith(_GRPC):
        found = _SERVER.fullmatch(metadata.removeprefix(_GRPC))
        if found is None:
            raise _bad(metadata)
        return await _connect_port(metadata, found[1].strip("[]"), int(found[2]), connect_s)
    servers = metadata.removeprefix(_ZOOKEEPER).rstrip("/")
    if not _SERVERS.fullmatch(servers):
        raise _bad(metadata)
    from gateway.admin.zookeeper_access import access_of, command_access
    from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper

    hosts, slash, path = servers.partition("/")
    try:
        return await connect_zookeeper(
            hosts,
            session_ms=_SESSION_MS,
            connect_s=connect_s,
            chroot=slash + path,
            make_root=False,
            access=access_of(zookeeper) if zookeeper else command_access(),
        )
    except InvalidArgument as error:
        raise JobError(str(error), "USAGE") from error
    except MetadataUnavailable as error:
        raise _unreachable(metadata, error) from error


async def _connect_port(metadata: str, host: str, port: int, connect_s: float) -> MetadataStore:
    """Connect to the ledger port, with retries in case the server is still starting."""
    from ledger.adapters.grpc.grpc_metadata import GrpcMetadata

    store = GrpcMetadata(host, port)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + connect_s
    while True:
        try:
            await store.exists("/")
            return store
        except MetadataUnavailable as error:
            if loop.time() >= give_up_s:
                await store.close()
                raise _unreachable(metadata, error) from error
        except BaseException:
            await store.close()
            raise
        await asyncio.sleep(_RETRY_S)


def _transport(metadata: str, name: str) -> BookieTransport:
    """Return the transport of this name. Raises JobError if there is none."""
    if name not in list(BookieTransport):
        raise JobError(f"bookie transport {name!r}: must be tcp or grpc", "USAGE")
    return BookieTransport.GRPC if metadata.startswith(_GRPC) else BookieTransport(name)


def _tls(*files: Path | str | None, roles: str) -> TlsFiles | None:
    """Check the PEM files. Raises JobError if one is missing or unreadable."""
    given = [Path(each) for each in files if each]
    if not given:
        return None
    if len(given) < 3:
        raise JobError("TLS needs all three of certificate, key and authority", "USAGE")
    for file in given:
        if not file.is_file():
            raise JobError(f"TLS: {file}: no such file", "USAGE")
    return TlsFiles(ca=given[0], cert=given[1], key=given[2], roles=roles != "off")


def _bad(metadata: str) -> JobError:
    return JobError(
        f"metadata {metadata!r}: must be zk://host:port,host:port/chroot for a cluster, or "
        "grpc://127.0.0.1:3181 for the ledger port of `gateway dev`",
        "USAGE",
    )


def _unreachable(metadata: str, error: Exception) -> JobError:
    if isinstance(error, AccessDenied):
        return JobError(f"metadata {metadata}: {error}", "ZOOKEEPER_AUTHORIZATION_FAILED")
    if metadata.startswith(_GRPC):
        fix = "is `gateway dev` running on this machine, with this --ledger-port?"
    else:
        fix = "is ZooKeeper running there?"
    return JobError(f"metadata {metadata}: {error}; {fix}", "UNREACHABLE")


# -- topics -----------------------------------------------------------------------------------


async def read_topics(store: MetadataStore) -> list[Topic]:
    """Return all topics in storage, sorted by name. Raises JobError."""
    try:
        await store.sync(IDS)
        nodes = await store.read_tree(IDS)
        topics = [decode_topic(path, node) for path, node in nodes.items()]
    except (CorruptFormat, MetadataUnavailable) as error:
        raise _failed(error) from error
    return sorted(topics, key=lambda topic: topic.name)


async def read_topic(store: MetadataStore, name: str) -> Topic:
    """Return the topic of that name. Raises JobError if it does not exist."""
    try:
        await store.sync(IDS)
        topic_id = UUID((await store.get(f"{NAMES}/{name}")).data.decode())
        path = f"{IDS}/{topic_id}"
        return decode_topic(path, await store.get(path))
    except NoNode as error:
        raise JobError(f"topic {name} does not exist", "UNKNOWN_TOPIC") from error
    except (ValueError, CorruptFormat, MetadataUnavailable) as error:
        raise _failed(error) from error


def _failed(error: LedgerError | ValueError) -> JobError:
    gone = isinstance(error, MetadataUnavailable)
    code = "UNREACHABLE" if gone else type(error).__name__
    return JobError(f"topics cannot be read: {error}", code)
