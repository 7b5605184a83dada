"""Random transactions of two ids on one topic: writes, offsets, ends, fencing, markers, reads.

Two producers share each transactional id. Each InitProducerId and each EndTxn v5 returns a producer
id and an epoch; a request names the newest pair or an older one, which is fenced. An end is sent
until its markers are written, so that all later answers are determined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

from tests.compat.differential.script import NOT_YET, Answer, Topic
from tests.compat.differential.sequences import Compared, versions
from tests.compat.differential.steps import Taken
from tests.compat.differential.transactional import Writer, coordinated

IDS = PARTITIONS = 2
BUSY = ("concurrent_transactions",)
MB = 1 << 20
MINUTE_MS = 60_000
PRODUCE, FETCH, LIST_OFFSETS, OFFSET_FETCH, INIT_PRODUCER_ID = 0, 1, 2, 9, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, TXN_OFFSET_COMMIT = 24, 25, 26, 27, 28
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS = 61, 65
BATCHED_FROM = 4  # AddPartitionsToTxn
SELF_ADDING_FROM = 12  # Produce
RAISES_FROM = 5  # EndTxn

ids = st.integers(0, IDS - 1)
partitions = st.integers(0, PARTITIONS - 1)
back = st.sampled_from((0, 0, 0, 0, 0, 1, 2))
"""How many pairs ago the producer got its pair; above 0 it is fenced."""


@dataclass(slots=True)
class Shared:
    """One transactional id, with the pairs that its producers got and what is probably open."""

    name: str
    pairs: list[tuple[Taken, Taken]] = field(default_factory=list[tuple[Taken, Taken]])
    added: set[int] = field(default_factory=set[int])
    """The partitions of the open transaction, if all requests of the newest pair succeeded."""
    ongoing: bool = False
    sequences: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The next sequence by pair and partition."""

    def ended(self) -> None:
        self.ongoing = False
        self.added.clear()


class Transactions(Compared):
    """Two transactional ids, two producers of each, two partitions and one group."""

    name: ClassVar[str] = "transactions"
    key: ClassVar[int] = END_TXN
    transactions: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._topic: Topic = self.script.topic("one", PARTITIONS)
        self._group = self.script.name("group")
        self._shared = [Shared(self.script.name(f"id-{number}")) for number in range(IDS)]

    @initialize()
    def begin(self) -> None:
        self.script.coordinator(self._group)
        for number, shared in enumerate(self._shared):
            coordinated(self.script, shared.name)
            self._begin(number)

    def _begin(self, number: int) -> None:
        shared = self._shared[number]
        found = self._initialise(shared, 5, {"producer_id": -1, "producer_epoch": -1})
        shared.pairs.append((found.take("producer_id"), found.take("producer_epoch")))

    def _writer(self, shared: Shared, back: int) -> tuple[Writer, int]:
        """Return a producer with the newest pair or an older one, and the number of its pair."""
        place = max(0, len(shared.pairs) - 1 - back)
        return Writer(self.script, shared.name, *shared.pairs[place]), place

    def _ask(self, key: int, version: int, **fields: Any) -> Answer:
        """Send a request until the coordinator is not busy, and compare the last answer."""
        return self.script.settled(self.script.other(key, version, **fields), BUSY)

    # -- producers --------------------------------------------------------------------------------

    @rule(
        number=ids,
        place=st.sampled_from(("new", "new", "newest", "fenced")),
        version=versions(0, 5),
    )
    def initialise(self, number: int, place: str, version: int) -> None:
        """Let a new producer begin, the newest raise its epoch, or a fenced one try to.

        A new producer fences the others and aborts their transaction. Until v2 each one is new.
        """
        shared = self._shared[number]
        old: dict[str, Any] = {"producer_id": -1, "producer_epoch": -1}
        if place != "new" and version >= 3:
            back = 0 if place == "newest" else len(shared.pairs) - 1
            mine, _ = self._writer(shared, back)
            old = {"producer_id": mine.producer, "producer_epoch": mine.epoch}
            if place == "fenced" and len(shared.pairs) >= 3:
                self._initialise(shared, version, old)
                return
        found = self._initialise(shared, version, old)
        shared.pairs.append((found.take("producer_id"), found.take("producer_epoch")))
        shared.ended()

    def _initialise(self, shared: Shared, version: int, old: dict[str, Any]) -> Answer:
        fields = {"transactional_id": shared.name, "transaction_timeout": MINUTE_MS, **old}
        return self._ask(INIT_PRODUCER_ID, version, **fields)

    # -- transactions -----------------------------------------------------------------------------

    @rule(
        number=ids,
        back=back,
        indexes=st.sampled_from(((0,), (1,), (0, 1), (0, 2))),
        verify=st.sampled_from((False, False, True)),
        version=versions(0, 5),
    )
    def add_partitions(
        self, number: int, back: int, indexes: tuple[int, ...], verify: bool, version: int
    ) -> None:
        shared = self._shared[number]
        mine, _ = self._writer(shared, back)
        topics = [{"name": self._topic.name, "partitions": list(indexes)}]
        if version < BATCHED_FROM:
            self._ask(ADD_PARTITIONS, version, **mine.old_ref, v3_and_below_topics=topics)
        else:
            row = {**mine.ref, "verify_only": verify, "topics": topics}
            self._ask(ADD_PARTITIONS, version, transactions=[row])
        only_verified = verify and version >= BATCHED_FROM
        if not back and not only_verified and max(indexes) < PARTITIONS:
            shared.added.update(indexes)
            shared.ongoing = True

    @rule(
        number=ids,
        back=back,
        partition=partitions,
        count=st.integers(1, 3),
        gap=st.sampled_from((0, 0, 0, 0, 0, 1, -1)),
        plain=st.sampled_from((False, False, False, False, True)),
        version=versions(9, 13),
    )
    def write(
        self,
        number: int,
        back: int,
        partition: int,
        count: int,
        gap: int,
        plain: bool,
        version: int,
    ) -> None:
        """Send a batch in the transaction, or one without it; a newer version adds itself."""
        self._write(number, back, partition, count, gap, plain, version)

    @rule(
        number=ids,
        indexes=st.sampled_from(((0,), (1,), (0, 1))),
        count=st.integers(1, 2),
        commit=st.booleans(),
        version=versions(11, 13),
        ends=versions(4, 5),
    )
    def write_and_end(
        self,
        number: int,
        indexes: tuple[int, ...],
        count: int,
        commit: bool,
        version: int,
        ends: int,
    ) -> None:
        """Write to each partition and end; a version that does not add itself may be refused."""
        for partition in indexes:
            self._write(number, 0, partition, count, 0, False, version)
        self._end(number, 0, commit, ends)

    def _write(
        self,
        number: int,
        back: int,
        partition: int,
        count: int,
        gap: int,
        plain: bool,
        version: int,
    ) -> None:
        shared = self._shared[number]
        mine, pair = self._writer(shared, back)
        sequence = shared.sequences.get((pair, partition), 0)
        header = {"attributes": 0} if plain else {}
        records = mine.batch(count, max(0, sequence + gap), **header)
        rows = [{"index": partition, "records": records}]
        topics = [{**self._topic.ref, "partition_data": rows}]
        fields = {"acks": -1, "timeout": 10_000, "topic_data": topics}
        name = None if plain else shared.name
        self._ask(PRODUCE, version, transactional_id=name, **fields)
        if plain or gap or back:
            return
        if version >= SELF_ADDING_FROM:
            shared.added.add(partition)
            shared.ongoing = True
        if partition in shared.added:
            shared.sequences[pair, partition] = sequence + count

    @rule(number=ids, back=back, version=versions(0, 4))
    def add_offsets(self, number: int, back: int, version: int) -> None:
        shared = self._shared[number]
        mine, _ = self._writer(shared, back)
        self._ask(ADD_OFFSETS, version, **mine.ref, group_id=self._group)
        shared.ongoing = shared.ongoing or not back

    @rule(
        number=ids,
        back=back,
        partition=partitions,
        offset=st.integers(0, 9),
        version=versions(0, 5),
    )
    def commit_offset(
        self, number: int, back: int, partition: int, offset: int, version: int
    ) -> None:
        shared = self._shared[number]
        mine, _ = self._writer(shared, back)
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": f"at {offset}",
        }
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": self._topic.name, "partitions": [row]}]
        fields = {**mine.ref, "group_id": self._group, **member, "topics": topics}
        self._ask(TXN_OFFSET_COMMIT, version, **fields)
        shared.ongoing = shared.ongoing or (not back and version >= 5)

    @rule(number=ids, back=back, commit=st.booleans(), version=versions(3, 5))
    def end(self, number: int, back: int, commit: bool, version: int) -> None:
        """End the transaction twice: the second answer comes when all markers are written."""
        self._end(number, back, commit, version)

    def _end(self, number: int, back: int, commit: bool, version: int) -> None:
        shared = self._shared[number]
        mine, _ = self._writer(shared, back)
        found = self._ask(END_TXN, version, **mine.ref, committed=commit)
        self._ask(END_TXN, version, **mine.ref, committed=commit)
        if back:
            return
        if version >= RAISES_FROM and (shared.ongoing or not commit):
            shared.pairs.append((found.take("producer_id"), found.take("producer_epoch")))
        shared.ended()

    @rule(
        number=ids,
        back=back,
        partition=partitions,
        commit=st.booleans(),
        of=st.integers(0, 2),
        version=versions(1, 2),
    )
    def write_a_marker(
        self, number: int, back: int, partition: int, commit: bool, of: int, version: int
    ) -> None:
        """Send a marker as an administrator does, in a transaction version of its own."""
        mine, _ = self._writer(self._shared[number], back)
        marker = {
            "producer_id": mine.producer,
            "producer_epoch": mine.epoch,
            "transaction_result": commit,
            "topics": [{"name": self._topic.name, "partition_indexes": [partition]}],
            "coordinator_epoch": -1,
            "transaction_version": of,
        }
        self.script.other(WRITE_MARKERS, version, markers=[marker])

    # -- readers ----------------------------------------------------------------------------------

    @rule(
        partition=partitions,
        offset=st.integers(0, 8),
        isolation=st.sampled_from((1, 1, 0)),
        version=versions(4, 18),
    )
    def fetch(self, partition: int, offset: int, isolation: int, version: int) -> None:
        row = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": MB,
        }
        wanted = {
            "topics": [{**self._topic.ref, "partitions": [row]}],
            "isolation_level": isolation,
        }
        limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": MB}
        session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
        fields = {"replica_id": -1, "rack_id": "", **limits, **session, **wanted}
        self.script.other(FETCH, version, **fields)

    @rule(
        partition=partitions,
        timestamp=st.sampled_from((-1, -1, -2, 0, 1_001, 1_003)),
        isolation=st.sampled_from((1, 1, 0)),
        version=versions(2, 11),
    )
    def list_offsets(self, partition: int, timestamp: int, isolation: int, version: int) -> None:
        row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": self._topic.name, "partitions": [row]}]
        wanted = {"replica_id": -1, "isolation_level": isolation, "timeout": 10_000}
        self.script.other(LIST_OFFSETS, version, topics=topics, **wanted)

    @rule(stable=st.booleans(), version=versions(7, 9))
    def fetch_offsets(self, stable: bool, version: int) -> None:
        topics = [{"name": self._topic.name, "partition_indexes": [0, 1]}]
        group = {"group_id": self._group, "member_id": None, "member_epoch": -1, "topics": topics}
        fields = {"groups": [group], "group_id": self._group, "topics": topics}
        found = self.script.other(OFFSET_FETCH, version, require_stable=stable, **fields)
        self.script.settled(found, NOT_YET)

    @rule(number=ids, partition=partitions)
    def describe(self, number: int, partition: int) -> None:
        """Compare the state of an id, and the producers of a partition."""
        topics = [{"name": self._topic.name, "partition_indexes": [partition]}]
        self.script.other(DESCRIBE_PRODUCERS, 0, topics=topics)
        names = [self._shared[number].name]
        self.script.other(DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
