"""The transaction coordinators of this process, and the brokers of the others.

An id belongs to one partition of `__transaction_state`, by Kafka's hash. The broker that leads the
partition coordinates the id. Source: Kafka, TransactionStateManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from kio.schema.errors import ErrorCode

from gateway.cluster.port import Cluster, ClusterMember, StreamKey
from gateway.cluster.single_broker import SingleBroker
from gateway.config import TransactionLimits
from gateway.core.topic_names import TRANSACTION_STATE
from gateway.core.transaction_effects import TransactionSettings
from gateway.core.transaction_states import coordinator_partition
from gateway.log import Throttle, logger
from gateway.topics import internal_topics
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import Partitions
from gateway.topics.producer_ids import ProducerIds
from gateway.transactions.coordinator_partition import CoordinatorPartition, CoordinatorServices
from gateway.transactions.long_records import LongRecords
from gateway.transactions.ports import FormGate, MarkerSender
from gateway.transactions.transaction_map import TransactionMap
from gateway.transactions.turns import Turns
from ledger.ports.clock import Clock
from ledger.tasks import reported, start_restarting

TRANSACTION_VERSION = "transaction.version"
"""The feature whose level decides which protocol of transactions is used."""


class TransactionCoordinators:
    """One `CoordinatorPartition` for each partition of the log that this broker leads.

    It is the `PartitionHost` of `__transaction_state`.
    """

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        clock: Clock,
        producer_ids: ProducerIds,
        markers: MarkerSender,
        limits: TransactionLimits,
        gate: FormGate,
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._cluster: Cluster = partitions.cluster
        self._limits = limits
        self._gate = gate
        self._throttle = Throttle()
        self.long_records = LongRecords()
        self._services = CoordinatorServices(
            clock=clock,
            settings=TransactionSettings(
                timeout_ms_max=limits.timeout_ms_max,
                id_expiration_ms=limits.id_expiration_ms,
                scan_ms=limits.scan_ms,
            ),
            producer_ids=producer_ids,
            markers=markers,
            find_log=partial(partitions.led, TRANSACTION_STATE),
            level=partial(gate.level, TRANSACTION_VERSION),
            has_memory=self._has_memory,
            has_memory_for_id=self._has_memory_for_id,
            throttle=self._throttle,
            turns=Turns(),
            long_records=self.long_records,
        )
        # The coordinator of each partition that this broker leads, by index.
        self._by_index: dict[int, CoordinatorPartition] = {}
        # Ticks all coordinators. None before `start` and after `stop`.
        self._ticking: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------

    def build(self, index: int) -> tuple[TransactionMap, CoordinatorPartition]:
        """Return the state and the observer of a partition that this broker leads from now on."""
        before = self._by_index.get(index)
        if before is not None:
            before.on_ended()
        built = CoordinatorPartition(index, f"{TRANSACTION_STATE}-{index}", self._services)
        self._by_index[index] = built
        return built.state, built

    def on_forgotten(self, index: int) -> None:
        """See `PartitionHost`: the ids of a lost partition take no memory from those of others."""
        if self._partitions.led(TRANSACTION_STATE, index) is None:
            ended = self._by_index.pop(index, None)
            if ended is not None:
                ended.on_ended()

    async def start(self) -> None:
        """Begin to tick. A single broker also opens all partitions: prepared transactions end."""
        self._ticking = start_restarting("the coordinators of transactions", self._tick)
        if isinstance(self._cluster, SingleBroker):
            topic = self._catalog.by_name(TRANSACTION_STATE)
            for index in range(0 if topic is None else topic.partitions):
                self._partitions.find(TRANSACTION_STATE, index)

    async def stop(self) -> None:
        """End all coordinators. Their logs are closed by `Partitions`."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        for each in self._by_index.values():
            each.on_ended()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._limits.scan_ms / 1000)
            for each in list(self._by_index.values()):
                with reported("the timeouts of transactions"):
                    await each.tick()
                await asyncio.sleep(0)

    # -- lookups ------------------------------------------------------------------------------

    def index_of(self, transactional_id: str) -> int:
        """Return the partition of the log to which an id belongs, -1 if there is no log."""
        topic = self._catalog.by_name(TRANSACTION_STATE)
        return -1 if topic is None else coordinator_partition(transactional_id, topic.partitions)

    def local(self, transactional_id: str) -> CoordinatorPartition | ErrorCode:
        """Return the coordinator of an id if it is in this process, otherwise the error."""
        if not self._open_gate():
            return ErrorCode.coordinator_not_available
        index = self.index_of(transactional_id)
        return (None if index < 0 else self._at(index)) or ErrorCode.not_coordinator

    def leader(self, transactional_id: str) -> ClusterMember | None:
        """Return the broker that coordinates an id, or None if there is none now.

        Creates the log in the background if it does not exist. Opens a partition of this broker.
        """
        if not self._open_gate():
            return None
        topic = self._catalog.by_name(TRANSACTION_STATE)
        if topic is None:
            internal_topics.begin(self._catalog, TRANSACTION_STATE)
            return None
        index = coordinator_partition(transactional_id, topic.partitions)
        node_id = self._cluster.leader(StreamKey(topic.topic_id, index)).node_id
        if node_id == self._cluster.node_id and not self._serves(index):
            return None
        members = self._cluster.members()
        return next((each for each in members if each.node_id == node_id), None)

    def _at(self, index: int) -> CoordinatorPartition | None:
        """Return the coordinator of a partition that this broker leads. Opens the partition."""
        log = self._partitions.find(TRANSACTION_STATE, index)
        return None if log is None else self._by_index.get(index)

    def _serves(self, index: int) -> bool:
        found = self._at(index)
        return found is not None and not found.loading

    def _open_gate(self) -> bool:
        """Return whether records of transactions may be written. Otherwise try to open the gate."""
        if self._gate.writes_new_forms:
            return True
        self._gate.begin_new_forms()
        return False

    def all(self) -> Iterator[CoordinatorPartition]:
        """Yield the coordinators of this process whose partitions this broker leads."""
        for index, each in list(self._by_index.items()):
            if self._partitions.find(TRANSACTION_STATE, index) is not None:
                yield each

    # -- memory -------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the ids of this broker's coordinators take.

        Long records that are not encoded yet count, because many may be accepted until the first
        one is durable.
        """
        durable = sum(each.state.memory_bytes for each in self._by_index.values())
        return durable + self.long_records.waiting_bytes

    def _has_memory(self, more: int) -> bool:
        """Return whether known ids may take `more` bytes beyond those in use."""
        return self._fits(more, self._limits.memory_bytes_max, "new partitions")

    def _has_memory_for_id(self, more: int) -> bool:
        """Return whether a new id may take `more` bytes. Known ids have a reserve beyond that."""
        return self._fits(more, self._limits.ids_bytes_max, "new transactional ids")

    def _fits(self, more: int, bytes_max: int, refused: str) -> bool:
        if self.memory_bytes + more <= bytes_max:
            return True
        now_s = self._services.clock.monotonic_s()
        if self._throttle.allows("the memory of transactions is used up", refused, now_s):
            logger().warning(
                f"the memory of transactions is used up; {refused} are refused",
                bytes_max=bytes_max,
                frees="ids expire after the time without a transaction; ended transactions keep no "
                "partitions",
                expiration_ms=self._limits.id_expiration_ms,
            )
        return False
