"""One subscriber whose positions lie in a log segment: its node, its segment, and who may write.

    close the old segment -> node {last commits, no segment} -> create a segment -> node {segment}

Each step of the node is by version. A crash between any two leaves exactly one place with the
newest value: the segment that the node names, or else the node. Claiming recovers the segment
that the node names, which shuts its writer out, and then moves the node on, which shuts out whoever
was about to begin one. A ledger that was made and never named carries `SUBSCRIPTION_KEY`.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial

from ledger.errors import (
    BadVersion,
    CorruptFormat,
    LedgerError,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NoSuchLedger,
    NotEmpty,
    NotOwner,
)
from ledger.ids import LedgerId
from ledger.ports.clock import Clock
from ledger.ports.metadata import Check, Delete, MetadataStore, Node, Op
from ledger.streams.plain_log import ENTRY_BYTES, PlainLog, PlainLogs
from subscriptions.committed_offset import WHOLE_STREAM
from subscriptions.records_pb2 import Subscription as SubscriptionRecord
from subscriptions.segments.log_node import (
    decode_node,
    encode_node,
    expire_past,
    is_log_node,
    ledgers_named,
    put_state,
    state_in_node,
)
from subscriptions.segments.segment_records import (
    BASE,
    SubscriptionState,
    complete,
    decode_record,
    encode_native,
)
from subscriptions.znodes.znode_format import (
    OPS_MAX,
    decode_child,
    decode_subscriber,
    node_name,
    unseal,
)

SUBSCRIPTION_KEY = "subscription"
"""In the custom metadata of a ledger that holds a subscriber's records: the path of its node."""

_CLAIM_ATTEMPTS_MAX = 5
_LOST_REPLIES_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStoreConfig:
    """Bounds of the log-segment store."""

    segment_bytes: int = 4 * 1024 * 1024  # then it rolls: what a takeover reads at most
    node_state_bytes: int = 256 * 1024  # positions beyond it lie in a closed segment of their own
    entry_bytes: int = ENTRY_BYTES  # commits that wait share an entry up to it
    idle_s: float = 60.0  # a segment without commits for so long is closed and written back
    open_segments_max: int = 20_000  # beyond it the longest idle ones are closed sooner
    history_ms: int = 7 * 24 * 3600 * 1000  # closed segments are kept for so long
    history_segments_max: int = 1_000  # of one subscriber; its node lists them
    offsets_waiting_max: int = 20_000  # of all subscribers; then `room` waits
    unloads_at_once: int = 64

    def __post_init__(self) -> None:
        assert self.segment_bytes > 0
        assert 0 < self.entry_bytes <= 8 * 1024 * 1024
        assert self.node_state_bytes <= 512 * 1024  # with its history it must fit into a node
        assert self.idle_s > 0
        assert self.open_segments_max >= 1


class LogStoreServices:
    """What all subscribers of one store have in common. `store` is this store's alone."""

    def __init__(
        self,
        metadata: MetadataStore,
        logs: PlainLogs,
        clock: Clock,
        config: LogStoreConfig,
        *,
        native: bool,
    ) -> None:
        self.metadata = metadata
        self.logs = logs
        self.clock = clock
        self.config = config
        self.native = native
        self.store = secrets.randbits(64)


async def delete_ledgers(logs: PlainLogs, ledgers: set[LedgerId]) -> None:
    """They are gone, or nobody's: whoever clears up left-overs finds them by their key."""
    for ledger in sorted(ledgers):
        try:
            await logs.delete(ledger)
        except LedgerError:
            continue


async def read_state(
    logs: PlainLogs | None, record: SubscriptionRecord, path: str, *, fence: bool
) -> tuple[SubscriptionState, bool]:
    """The state that a node tells, with its segments; and whether the open one says anything.

    `fence`: nobody can add to it any more. Raises NoSuchLedger (the node has moved on
    meanwhile), CorruptFormat, and what reading raises.
    """
    state = state_in_node(record, path)
    if record.HasField("snapshot_id"):
        await _apply_log(state, logs, LedgerId(record.snapshot_id), path, fence=False)
    if not record.HasField("segment_id"):
        return state, False
    return state, await _apply_log(state, logs, LedgerId(record.segment_id), path, fence=fence)


async def _apply_log(
    state: SubscriptionState, logs: PlainLogs | None, ledger: LedgerId, path: str, *, fence: bool
) -> bool:
    if logs is None:
        raise CorruptFormat(f"{path}: its positions are in log segment {ledger}")
    stored = await (logs.recover(ledger) if fence else logs.read(ledger))
    where = f"{path}: ledger {ledger}"
    said = False
    for record in complete(decode_record(each.data, where) for each in stored):
        if not record.base:  # the node says that as well
            state.apply(record)
            said = True
    return said


class SegmentClaim:
    """One subscriber, from `find` on this store's. One method runs at a time.

    Any LedgerError out of a method ends the claim: make a new one and `find`.
    """

    __slots__ = (
        "_base_bytes",
        "_base_records",
        "_children",
        "_name",
        "_named",
        "_record",
        "_shared",
        "log",
        "path",
        "state",
        "version",
    )

    def __init__(self, shared: LogStoreServices, path: str, name: str) -> None:
        self._shared = shared
        self.path = path
        self._name = name
        self.state = SubscriptionState()  # durable
        self.version: int | None = None  # of the node; None: there is none
        self.log: PlainLog | None = None  # the open segment
        self._record = _new_record(name)  # of a node in the new form, or to be written
        self._named: set[LedgerId] = set()  # by the node as it is
        self._children: dict[str, int] = {}  # nodes of the old form, with versions
        self._base_records = 0  # in the open segment
        self._base_bytes = 0

    @property
    def exists(self) -> bool:
        return self.version is not None

    @property
    def grown(self) -> bool:
        """The open segment shall end: the next takeover has enough to read."""
        log = self.log
        return log is not None and (
            log.size_bytes >= self._shared.config.segment_bytes + self._base_bytes
        )

    @property
    def expires(self) -> bool:
        """Some of its history is older than it is kept."""
        past = self._record.past_segments
        return bool(past) and past[0].closed_ms < self._oldest_ms

    @property
    def _oldest_ms(self) -> int:
        return self._shared.clock.now_ms() - self._shared.config.history_ms

    # claiming

    async def find(self) -> None:
        """`state` is the last one, and who had the subscriber before can write no more."""
        for attempt in range(_CLAIM_ATTEMPTS_MAX):
            # A follower that is behind must not pass for a subscriber without positions.
            node = await self._look()
            self._forget()
            if node is None:
                return
            self.version = node.version
            try:
                if is_log_node(node.data):
                    await self._take_from_log(node)
                else:
                    await self._take_old_form(node)
            except (NotOwner, NoSuchLedger) as error:
                if attempt + 1 < _CLAIM_ATTEMPTS_MAX and await self._moved_on(node):
                    continue
                if isinstance(error, NoSuchLedger):
                    raise CorruptFormat(f"{self.path}: its segment is gone: {error}") from error
                raise
            return

    def _forget(self) -> None:
        self.log, self.version, self._children = None, None, {}
        self.state, self._record, self._named = SubscriptionState(), _new_record(self._name), set()

    async def _moved_on(self, node: Node) -> bool:
        found = await self._look()
        return found is None or found.version != node.version

    async def _take_from_log(self, node: Node) -> None:
        record = decode_node(node.data, self.path)
        self.state, said = await read_state(self._shared.logs, record, self.path, fence=True)
        self._record = record
        self._named = ledgers_named(record)
        if record.HasField("segment_id"):
            await self._fold(LedgerId(record.segment_id), kept=said)
        else:
            await self._set_record()

    async def _take_old_form(self, node: Node) -> None:
        path = self.path
        if self._shared.native:
            if node.data:  # without data only a reader's lock was ever made below it
                dlsn = decode_subscriber(node.data, path)
                self.state.put(WHOLE_STREAM, encode_native(dlsn))
            await self._set(node.data)
            return
        self.state.note = unseal(node.data, path)
        await self._set(node.data)  # from here on nobody else moves the positions below
        for child, data in (await self._shared.metadata.read_tree(path)).items():
            key, _ = decode_child(child, data)
            self.state.put(key, unseal(data.data, child))
            self._children[child] = data.version

    # segments

    async def begin_segment(self) -> None:
        """`log` takes records, and the node says so."""
        assert self.log is None
        shared, record = self._shared, self._record
        if not record.format:  # no node yet, or one in the old form
            await self._put_state()
        log = await self._create_log()
        record.segment_id = log.ledger
        try:
            await self._set_record()
        except NotOwner:  # with any other error the node may name it
            await delete_ledgers(shared.logs, {log.ledger})
            raise
        self.log = log
        self._base_records = self._base_bytes = 0
        if self.state.records or self.state.note:
            self._write_base(log)
        await self._remove_children()

    async def _create_log(self) -> PlainLog:
        """A log of this subscriber. Not ledger 0: to a reader of the proposal that is none."""
        logs = self._shared.logs
        while True:
            log = await logs.create({SUBSCRIPTION_KEY: self.path.encode()})
            if log.ledger:
                return log
            await delete_ledgers(logs, {log.ledger})

    def _write_base(self, log: PlainLog) -> None:
        """The segment can tell its history without what the node said then."""
        if self._record.HasField("snapshot_id"):
            return
        bodies = [body + BASE for body in self.state.encoded()]
        self._base_records = len(bodies)
        log.append(bodies, self._shared.clock.now_ms(), lambda _: None)
        self._base_bytes = log.size_bytes

    async def end_segment(self) -> None:
        """The segment is closed, the node holds its outcome. A no-op without one."""
        log = self.log
        if log is None:
            return
        await log.close()
        self.log = None
        await self._fold(log.ledger, kept=log.records > self._base_records)

    async def _fold(self, segment: LedgerId, *, kept: bool) -> None:
        """The closed segment becomes history: its outcome is in the node, or in a snapshot.

        One that says nothing is not kept.
        """
        record, config = self._record, self._shared.config
        now_ms = self._shared.clock.now_ms()
        record.ClearField("segment_id")
        if kept:
            past = record.past_segments.add(segment_id=segment, closed_ms=now_ms)
            if record.HasField("snapshot_id"):
                past.snapshot_id = record.snapshot_id
            await self._put_state()
        expire_past(record, self._oldest_ms, config.history_segments_max)
        await self._set_record()

    async def expire(self) -> None:
        """History beyond its time is gone."""
        if self.expires:
            expire_past(self._record, self._oldest_ms, self._shared.config.history_segments_max)
            await self._set_record()

    # deletion

    async def delete(self) -> bool:
        """All of it is gone. False: there was nothing."""
        if self.version is None:
            return False
        shared, version = self._shared, self.version
        ledgers = self._named
        children = await shared.metadata.paths(self.path) if not shared.native else []
        if self._record.format:  # what is below is left over from the old form, and says nothing
            await self._remove_paths(children[OPS_MAX:])
            children = children[:OPS_MAX]
        ops: list[Op] = [*map(Delete, children), Delete(self.path, version)]
        try:
            await shared.metadata.multi(ops)
        except MetadataUnavailable:
            if await self._look() is not None:
                raise
        except (BadVersion, NoNode, NotEmpty) as error:
            raise NotOwner(f"{self.path}: {error}") from error
        self._forget()
        await delete_ledgers(shared.logs, ledgers)
        return True

    # behind it

    async def _put_state(self) -> None:
        """The record holds the state, or names a closed segment that does."""
        record, state, shared = self._record, self.state, self._shared
        bodies = state.encoded()
        if sum(map(len, bodies)) <= shared.config.node_state_bytes:
            put_state(record, state, self.path)
            return
        put_state(record, SubscriptionState(), self.path)
        log = await self._create_log()
        await _write_whole(log, bodies, shared)
        record.snapshot_id = log.ledger

    async def _set_record(self) -> None:
        """The node is as `_record`; ledgers that it named before and does not now are deleted."""
        await self._set(encode_node(self._record, self._shared.store))
        before, self._named = self._named, ledgers_named(self._record)
        await delete_ledgers(self._shared.logs, before - self._named)

    async def _remove_children(self) -> None:
        if self._children:
            children, self._children = list(self._children), {}
            await self._remove_paths(children)

    async def _remove_paths(self, paths: list[str]) -> None:
        for at in range(0, len(paths), OPS_MAX - 1):
            assert self.version is not None
            some: list[Op] = [Check(self.path, self.version)]
            some += map(Delete, paths[at : at + OPS_MAX - 1])
            try:
                await self._shared.metadata.multi(some)
            except (BadVersion, NoNode) as error:
                raise NotOwner(f"{self.path}: {error}") from error

    async def _look(self) -> Node | None:
        await self._shared.metadata.sync(self.path)
        try:
            return await self._shared.metadata.get(self.path)
        except NoNode:
            return None

    async def _set(self, data: bytes) -> None:
        """The node holds `data`, by version. A lost reply is settled by looking.

        Raises NotOwner when somebody else moved it, MetadataUnavailable.
        """
        metadata, version = self._shared.metadata, self.version
        unanswered = False
        for _ in range(_LOST_REPLIES_MAX):
            try:
                if version is None:
                    await metadata.create(self.path, data)
                    self.version = 0
                else:
                    self.version = await metadata.set(self.path, data, version)
                return
            except MetadataUnavailable:
                unanswered = True
            except (BadVersion, NodeExists, NoNode) as error:
                if not unanswered:
                    raise NotOwner(f"{self.path}: {error}") from error
            wanted = Node(data, 0 if version is None else version + 1)
            found = await self._look()
            if found == wanted:
                self.version = wanted.version
                return
            if (None if found is None else found.version) != version:
                raise NotOwner(f"{self.path}: somebody else has it")
        raise MetadataUnavailable(f"{self.path}: {_LOST_REPLIES_MAX} changes got no answer")


def _new_record(name: str) -> SubscriptionRecord:
    try:
        name.encode()
    except UnicodeEncodeError:
        name = node_name(name)
    return SubscriptionRecord(name=name)


async def _write_whole(log: PlainLog, bodies: list[bytes], shared: LogStoreServices) -> None:
    """All of it is in the log, which is closed."""
    now_ms = shared.clock.now_ms()
    loop = asyncio.get_running_loop()
    some: list[bytes] = []
    size = 0
    for at, body in enumerate(bodies):
        some.append(body)
        size += len(body)
        if size < shared.config.entry_bytes and at + 1 < len(bodies):
            continue
        durable: asyncio.Future[None] = loop.create_future()
        log.append(some, now_ms, partial(settle, durable))
        await durable
        some, size = [], 0
    await log.close()


def settle(future: asyncio.Future[None], error: LedgerError | None) -> None:
    """Whoever waits is told, unless he went away."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
