"""The claim of one subscriber with a log segment: its node, its segment and the right to write.

    close the old segment ─▶ node {last commits, no segment} ─▶ create a segment ─▶ node {segment}

Each change of the node is a compare-and-set by version. A crash between two steps leaves the newest
value in exactly one place: the segment that the node names, or else the node. A claim recovers that
segment, which fences its writer. It then changes the node, so that the old owner cannot begin a new
segment. A ledger that was created and never named carries `SUBSCRIPTION_KEY`.
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
from ledger.ports.metadata import Check, Create, Delete, MetadataStore, Node, Op, Set
from ledger.streams.plain_log import ENTRY_BYTES, PlainLog, PlainLogs
from ledger.streams.shared_transactions import SharedTransactions
from ledger.streams.steady_clock import SteadyClock
from ledger.tasks import start_once
from subscriptions.committed_offset import WHOLE_STREAM
from subscriptions.records_pb2 import Subscription as SubscriptionRecord
from subscriptions.segments.in_steps import decode_records, in_steps
from subscriptions.segments.log_node import (
    FORMAT_KEYED,
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
    carried,
    complete,
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
"""Key in the custom metadata of a subscriber's ledger; the value is the path of its node."""

_CLAIM_ATTEMPTS_MAX = 5
_LOST_REPLIES_MAX = 5
_DELETES_MAX = 32  # old segments that are deleted at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStoreConfig:
    """Bounds of the log-segment store."""

    segment_bytes: int = 4 * 1024 * 1024  # a larger segment rolls; bounds the reads of a takeover
    node_state_bytes: int = 256 * 1024  # a larger state goes into a closed segment of its own
    entry_bytes: int = ENTRY_BYTES  # waiting commits share an entry up to it
    idle_s: float = 60.0  # a segment without commits for this time is closed
    open_segments_max: int = 20_000  # beyond it the longest idle segments are closed sooner
    history_ms: int = 7 * 24 * 3600 * 1000  # retention of closed segments
    history_segments_max: int = 1_000  # of one subscriber; its node lists them
    carry_bytes: int = 128 * 1024  # a smaller closed segment is copied into the next one
    carry_wait_s: float = 0.5  # a commit waits no longer for the closed segment, and goes on
    offsets_waiting_max: int = 20_000  # of all subscribers; beyond it `room` waits
    unloads_at_once: int = 64  # subscribers that `close` unloads in parallel

    def __post_init__(self) -> None:
        assert self.segment_bytes > 0
        assert 0 < self.entry_bytes <= 8 * 1024 * 1024
        assert self.node_state_bytes <= 512 * 1024  # one node holds it and its history
        assert self.idle_s > 0
        assert self.open_segments_max >= 1


class LogStoreServices:
    """The shared services of one store. `store` is a random number that identifies it."""

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
        self.transactions = SharedTransactions(metadata)
        self.logs = logs
        self.clock = clock
        self.steady_clock = SteadyClock(clock)  # for decisions to delete
        self.config = config
        self.native = native
        self.store = secrets.randbits(64)
        # Ledgers that no node names any more, to be deleted by `_deleting`.
        self._unnamed: set[LedgerId] = set()
        # The task that deletes them, some at a time. None while there are none.
        self._deleting: asyncio.Task[None] | None = None

    def delete_later(self, ledgers: set[LedgerId]) -> None:
        """Delete ledgers in the background: nothing depends on it. See `delete_ledgers`."""
        self._unnamed |= ledgers
        if self._unnamed and self._deleting is None:
            self._deleting = start_once("the deletion of old segments", self._delete_unnamed())

    async def _delete_unnamed(self) -> None:
        try:
            while self._unnamed:
                some = [self._unnamed.pop() for _ in range(min(len(self._unnamed), _DELETES_MAX))]
                await asyncio.gather(*(delete_ledgers(self.logs, {each}) for each in some))
        finally:
            self._deleting = None

    async def wait_deleted(self) -> None:
        """Wait until the ledgers of `delete_later` are deleted, or are left as orphans."""
        if self._deleting is not None:
            await asyncio.wait([self._deleting])


async def delete_ledgers(logs: PlainLogs, ledgers: set[LedgerId]) -> None:
    """Delete ledgers. One that cannot be deleted becomes an orphan, which its key identifies."""
    for ledger in sorted(ledgers):
        try:
            await logs.delete(ledger)
        except LedgerError:
            continue


async def read_state(
    logs: PlainLogs | None, record: SubscriptionRecord, path: str, *, fence: bool
) -> tuple[SubscriptionState, bool]:
    """Read the state of a node and its segments. Returns also if the open one has changes.

    With `fence`, the writer of the open segment is fenced. Raises NoSuchLedger if the node has
    changed meanwhile, CorruptFormat, and the errors of reading.
    """
    state = await state_in_node(record, path)
    if record.HasField("snapshot_id"):
        await _apply_segment(state, logs, LedgerId(record.snapshot_id), path, fence=False)
    if not record.HasField("segment_id"):
        return state, False
    return state, await _apply_segment(state, logs, LedgerId(record.segment_id), path, fence=fence)


async def _apply_segment(
    state: SubscriptionState, logs: PlainLogs | None, ledger: LedgerId, path: str, *, fence: bool
) -> bool:
    if logs is None:
        raise CorruptFormat(f"{path}: its offsets are in log segment {ledger}")
    stored = await (logs.recover(ledger) if fence else logs.read(ledger))
    where = f"{path}: ledger {ledger}"
    has_changes = False
    async for record in in_steps(complete(await decode_records(stored, where))):
        if not record.base:  # a base record repeats the state in the node
            state.apply(record)
            has_changes = True
    return has_changes


class SegmentClaim:
    """The claim of one subscriber, valid from `find` on. One method runs at a time.

    Any LedgerError that a method raises ends the claim. Then create a new one and `find` again.
    """

    __slots__ = (
        "_base_bytes",
        "_base_records",
        "_carried",
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
        # The durable state. `find` reads it; the store applies each durable change.
        self.state = SubscriptionState()
        # The version of the node as this claim last read or wrote it; None if there is no node.
        self.version: int | None = None
        # The open segment, from `begin_segment` until `end_segment`. The node names it.
        self.log: PlainLog | None = None
        # The node's content in the log form, as written or about to be. Its `format` is 0 while
        # the node does not exist or still is in the older form.
        self._record = _new_record(name)
        # The ledgers that the stored node names. Those that a new version drops are deleted.
        self._named: set[LedgerId] = set()
        # Child nodes of the older form with their versions, until a segment replaces them.
        self._children: dict[str, int] = {}
        # Records and bytes of the open segment that only repeat the state at its beginning.
        self._base_records = 0
        self._base_bytes = 0
        # True if the open segment began with a copy of the one before, which it replaced.
        self._carried = False

    @property
    def exists(self) -> bool:
        return self.version is not None

    @property
    def grown(self) -> bool:
        """True if the open segment is due to end, so that a takeover need not read more."""
        log = self.log
        return log is not None and (
            log.size_bytes >= self._shared.config.segment_bytes + self._base_bytes
        )

    def takes(self, form: int) -> bool:
        """Return whether the segments may have records of a format. Once True, it stays so."""
        return self._record.format >= form

    @property
    def compresses(self) -> bool:
        """True if entries may be compressed: releases that cannot read them refuse the node."""
        return self.takes(FORMAT_KEYED)

    async def take(self, form: int) -> None:
        """Let the node refuse releases that would misread records of this format."""
        if not self._record.format:  # no node yet, or one in the older form
            await self._put_state()
        self._record.format = form
        await self._set_record()

    @property
    def expires(self) -> bool:
        """True if some of its history is past its retention."""
        past = self._record.past_segments
        return bool(past) and past[0].closed_ms < self._oldest_ms

    @property
    def _oldest_ms(self) -> int:
        return self._shared.steady_clock.now_ms() - self._shared.config.history_ms

    # claiming

    async def find(self) -> None:
        """Claim the subscriber, fence its previous owner and read the last state."""
        for attempt in range(_CLAIM_ATTEMPTS_MAX):
            # `_read_node` syncs first: a lagging ZooKeeper follower may not have the node yet.
            node = await self._read_node()
            self._reset()
            if node is None:
                return
            self.version = node.version
            try:
                if is_log_node(node.data):
                    await self._claim_segment(node)
                else:
                    await self._claim_nodes(node)
            except (NotOwner, NoSuchLedger) as error:
                if attempt + 1 < _CLAIM_ATTEMPTS_MAX and await self._node_has_changed(node):
                    continue
                if isinstance(error, NoSuchLedger):
                    raise CorruptFormat(
                        f"{self.path}: its log segment does not exist: {error}"
                    ) from error
                raise
            return

    def _reset(self) -> None:
        self.log, self.version, self._children = None, None, {}
        self.state, self._record, self._named = SubscriptionState(), _new_record(self._name), set()

    async def _node_has_changed(self, node: Node) -> bool:
        found = await self._read_node()
        return found is None or found.version != node.version

    async def _claim_segment(self, node: Node) -> None:
        record = decode_node(node.data, self.path)
        self.state, has_changes = await read_state(self._shared.logs, record, self.path, fence=True)
        self._record = record
        self._named = ledgers_named(record)
        if record.HasField("segment_id"):
            await self._add_to_history(LedgerId(record.segment_id), kept=has_changes)
        else:
            await self._set_record()

    async def _claim_nodes(self, node: Node) -> None:
        path = self.path
        if self._shared.native:
            if node.data:  # without data only the lock of a reader was ever created below it
                dlsn = decode_subscriber(node.data, path)
                self.state.put(WHOLE_STREAM, encode_native(dlsn))
            await self._set(node.data)
            return
        self.state.note = unseal(node.data, path)
        await self._set(node.data)  # the new version: no other store can now change its children
        for child, data in (await self._shared.metadata.read_tree(path)).items():
            key, _ = decode_child(child, data)
            self.state.put(key, unseal(data.data, child))
            self._children[child] = data.version

    # segments

    async def begin_segment(self) -> None:
        """Create a segment, name it in the node and open it for records."""
        assert self.log is None
        record = self._record
        if not record.format:  # no node yet, or one in the older form
            await self._put_state()
        log = await self._create_log()
        self._carried = await self._carry_history(log)
        record.segment_id = log.ledger
        if self._carried:
            del record.past_segments[-1]
        try:
            await self._set_record()
        except NotOwner:  # after any other error the node may name it
            await self._delete_unnamed(log.ledger)
            raise
        self.log = log
        self._base_records, self._base_bytes = log.records, log.size_bytes
        state = self.state
        if not self._carried and (state.records or state.note or state.keyed or state.pending):
            self._write_base(log)
        await self._remove_children()

    async def _delete_unnamed(self, ledger: LedgerId) -> None:
        """Delete a ledger that the change of the node would have named, if the node does not.

        A change without a reply may have been applied before another store claimed the node. Then
        the ledger is part of that store's history. In doubt it stays, at most as an orphan.
        """
        try:
            node = await self._read_node()
            if node is None or ledger in ledgers_named(decode_node(node.data, self.path)):
                return
        except LedgerError:
            return
        await delete_ledgers(self._shared.logs, {ledger})

    async def _carry_history(self, log: PlainLog) -> bool:
        """Copy the last closed segment into this new one, if it is small.

        So a subscriber that commits rarely has few ledgers. The node names either the old segment,
        or the new one once the copy is durable. Returns False if nothing was copied.
        """
        record, shared = self._record, self._shared
        if not record.past_segments or record.HasField("snapshot_id"):
            return False
        last = record.past_segments[-1]
        if last.HasField("snapshot_id"):
            return False
        config = shared.config
        size_max = min(config.carry_bytes, config.entry_bytes, config.segment_bytes // 2)
        try:
            async with asyncio.timeout(config.carry_wait_s):
                stored = await shared.logs.read_small(LedgerId(last.segment_id), size_max)
            if stored is None or sum(len(each.data) for each in stored) > size_max:
                return False  # or it was compressed, and is larger
            decoded = await decode_records(stored, f"{self.path}: ledger {last.segment_id}")
            carry = carried(stored, decoded, self._oldest_ms)
        except (LedgerError, TimeoutError):
            return False  # commits go on without their history
        copied = carry.records
        if not copied or sum(len(each.data) for each in copied) > size_max:
            return False
        # The end of a transaction ends whatever its producer has pending. So it must not be applied
        # to the state behind it, which the node holds, but to the one that it was written to.
        if carry.transactional and not carry.end.same(self.state):
            return False
        copying: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.copy(copied, partial(resolve, copying), compress=self.compresses)
        await copying
        announcing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.announce(partial(resolve, announcing))  # readers without a claim must see the copy
        await announcing
        if carry.transactional:
            put_state(record, carry.begin, self.path)
        return True

    async def _create_log(self) -> PlainLog:
        """Create a log of this subscriber. Never ledger 0, which the proposal reads as none."""
        logs = self._shared.logs
        while True:
            log = await logs.create({SUBSCRIPTION_KEY: self.path.encode()})
            if log.ledger:
                return log
            await delete_ledgers(logs, {log.ledger})

    def _write_base(self, log: PlainLog) -> None:
        """Write the state at the beginning, so that the segment alone holds its history."""
        if self._record.HasField("snapshot_id"):
            return
        bodies = [body + BASE for body in self.state.encoded()]
        self._base_records = len(bodies)
        now_ms = self._shared.clock.now_ms()
        log.append(bodies, now_ms, lambda _: None, compress=self.compresses)
        self._base_bytes = log.size_bytes

    async def end_segment(self) -> None:
        """Close the segment, if one is open, and store the resulting state in the node."""
        log = self.log
        if log is None:
            return
        await log.close()
        self.log = None
        kept = self._carried or log.records > self._base_records
        await self._add_to_history(log.ledger, kept=kept)

    async def _add_to_history(self, segment: LedgerId, *, kept: bool) -> None:
        """Move the closed segment to the history, and its state to the node or a snapshot.

        A segment without changes is not kept.
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
        """Remove history past its retention."""
        if self.expires:
            expire_past(self._record, self._oldest_ms, self._shared.config.history_segments_max)
            await self._set_record()

    # deletion

    async def delete(self) -> bool:
        """Delete the subscriber's nodes and ledgers. Returns False if it did not exist."""
        if self.version is None:
            return False
        shared, version = self._shared, self.version
        ledgers = self._named
        children = await shared.metadata.paths(self.path) if not shared.native else []
        if self._record.format:  # its children are left over from the older form, without meaning
            await self._remove_paths(children[OPS_MAX:])
            children = children[:OPS_MAX]
        ops: list[Op] = [*map(Delete, children), Delete(self.path, version)]
        try:
            await shared.metadata.multi(ops)
        except MetadataUnavailable:
            if await self._read_node() is not None:
                raise
        except (BadVersion, NoNode, NotEmpty) as error:
            raise NotOwner(f"{self.path}: {error}") from error
        self._reset()
        await delete_ledgers(shared.logs, ledgers)
        return True

    # reads and writes of the node

    async def _put_state(self) -> None:
        """Put the state into the record, or into a closed segment that the record names."""
        record, state, shared = self._record, self.state, self._shared
        bodies = state.encoded()
        if sum(map(len, bodies)) <= shared.config.node_state_bytes:
            put_state(record, state, self.path)
            return
        put_state(record, SubscriptionState(), self.path)
        log = await self._create_log()
        await _write_and_close(log, bodies, shared, compress=self.compresses)
        record.snapshot_id = log.ledger

    async def _set_record(self) -> None:
        """Write `_record` to the node, and later delete the ledgers that it no longer names."""
        await self._set(encode_node(self._record, self._shared.store))
        before, self._named = self._named, ledgers_named(self._record)
        self._shared.delete_later(before - self._named)

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

    async def _read_node(self) -> Node | None:
        await self._shared.metadata.sync(self.path)
        try:
            return await self._shared.metadata.get(self.path)
        except NoNode:
            return None

    async def _set(self, data: bytes) -> None:
        """Write the node by version. After a lost reply, read it to learn the outcome.

        Raises NotOwner if another store changed it, MetadataUnavailable.
        """
        version = self.version
        wanted = Node(data, 0 if version is None else version + 1)
        op = Create(self.path, data) if version is None else Set(self.path, data, version)
        unanswered = False
        for _ in range(_LOST_REPLIES_MAX):
            try:
                await self._shared.transactions.multi([op])
                self.version = wanted.version
                return
            except MetadataUnavailable:
                unanswered = True
            except (BadVersion, NodeExists, NoNode) as error:
                if not unanswered:
                    raise NotOwner(f"{self.path}: {error}") from error
            found = await self._read_node()
            if found == wanted:
                self.version = wanted.version
                return
            if (None if found is None else found.version) != version:
                raise NotOwner(f"{self.path}: another store claimed it")
        raise MetadataUnavailable(f"{self.path}: no reply to {_LOST_REPLIES_MAX} changes")


def _new_record(name: str) -> SubscriptionRecord:
    try:
        name.encode()
    except UnicodeEncodeError:
        name = node_name(name)
    return SubscriptionRecord(name=name)


async def _write_and_close(
    log: PlainLog, bodies: list[bytes], shared: LogStoreServices, *, compress: bool
) -> None:
    """Append all records to the log and close it."""
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
        log.append(some, now_ms, partial(resolve, durable), compress=compress)
        await durable
        some, size = [], 0
    await log.close()


def resolve(future: asyncio.Future[None], error: LedgerError | None) -> None:
    """Resolve the future, unless it is done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
