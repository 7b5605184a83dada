"""A cluster whose topic is compacted while gateways fail, are taken over, or stand still.

Everything of `TransactingWorld` happens here too, with small segments, small maps of keys and a
cleaner in each gateway. Faults also strike at the point where a cleaned segment is listed.
`compacting_oracle` lists what must never happen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from unittest import mock

from gateway.cleaning.settings import CleanerSettings
from gateway.core.cleaning_keys import KEY_BYTES
from gateway.topics.partitions import stream_name
from ledger.errors import LedgerError
from ledger.streams.segment_store import SegmentStore
from tests.sim.compacting_clients import KEYS, Auditor, CompactedReader, KeyedProducer
from tests.sim.compacting_host import CompactingHost
from tests.sim.compacting_oracle import CompactedOracle, ListedSegments, Rules
from tests.sim.gateway_host import SESSION_S
from tests.sim.transacting_world import QUIET_S, TransactingWorld

_HOUR_MS = 3_600_000


class CompactingWorld(TransactingWorld):
    """Everything of one seed."""

    events = (*TransactingWorld.events, "tend", "tend", "roll", "roll", "roll")
    host_type, producer_type, reader_type = CompactingHost, KeyedProducer, CompactedReader

    def __init__(self, seed):
        super().__init__(seed)
        draw = Random(f"{seed}:compacting")
        rules = Rules(
            lag_ms=draw.choice([0, 0, 0, 1_500, _HOUR_MS]),
            retention_ms=draw.choice([0, 400, 3_000, _HOUR_MS]),
            delay_ms=draw.choice([0, 1_500, 60_000]),
        )
        self.oracle = CompactedOracle(rules)
        self.report = self.oracle.report
        self.stream_config = replace(
            self.stream_config,
            segment_bytes=draw.choice([800, 1_500, 4_000]),
            truncated_keep_ms=rules.delay_ms,
        )
        self.cleaner_settings = CleanerSettings(
            map_bytes=KEY_BYTES * draw.choice([1, 2, 3, 1_000, 1_000]),
            backoff_ms=draw.choice([50, 300]),
        )
        self.child_s = draw.choice([0.0005, 0.01])  # mean: the child answers after it
        self.strikes = draw.choice([0.0, 0.05, 0.2])  # faults at the points of a swap
        self.keys = KEYS[: draw.randint(2, len(KEYS))]
        self.listed = ListedSegments(self.oracle, self.tree, self._index_of)
        self.auditor = Auditor(self, "auditor")
        self.counts = Counter()
        self.streams = {}  # index by name

    def topic_configs(self):
        rules = self.oracle.rules
        return {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "min.compaction.lag.ms": str(rules.lag_ms),
            "delete.retention.ms": str(rules.retention_ms),
            "file.delete.delay.ms": str(rules.delay_ms),
        }

    async def boot(self):
        await super().boot()
        self.streams |= {stream_name(self.topic_id, at): at for at in range(self.partitions)}

    def _index_of(self, name):
        return self.streams.get(name)

    def watch(self):
        super().watch()
        self.listed.look()
        for host in self.hosts:
            for each in host.cleaner.reports() if host.serving else ():
                if each.uncleanable:
                    self.report("poison", f"{each.topic}-{each.partition}: {each.round_error}")

    # -- faults -------------------------------------------------------------------------------

    async def _tend(self, host):
        """Delete ledgers that are due, as gateways do every few seconds."""
        if host.reachable:
            for partition in list(host.partitions._by_key.values()):
                if partition.readable:
                    self._background(self._expire_ledgers(partition))

    async def _expire_ledgers(self, partition):
        try:
            async with asyncio.timeout(QUIET_S):
                await partition.stream.expire()
        except (LedgerError, TimeoutError):
            pass

    async def _before_swap(self, store):
        """The gateway of `store` is about to list a cleaned segment."""
        host = next((h for h in self.hosts if h.session is store._metadata), None)
        if host is None or self.healing or self.draw.random() >= self.strikes:
            return
        self.counts["strikes"] += 1
        strike = self.draw.choice([self._kill, self._cut, self._pause, self._expire, self._sleep])
        await strike(host)
        if self.draw.random() < 0.8:
            await host.awake()

    async def _sleep(self, host):
        """The gateway stands still until others have taken over, and wakes up at the swap."""
        if host.reachable:
            host.pause()
            delay_s = SESSION_S + self.draw.expovariate(1 / 0.5)
            asyncio.get_running_loop().call_later(delay_s, host.heal)

    # -- the story ----------------------------------------------------------------------------

    @contextmanager
    def _observed(self):
        """Note which store lists which ledger, and when it has read the list."""
        listed, cls = self.listed, SegmentStore
        load, start, complete, swap = cls.load, cls.start, cls.complete, cls.replace

        async def observed_load(store):
            found = await load(store)
            listed.loaded_s[store] = asyncio.get_running_loop().time()
            return found

        async def observed_start(store, segment):
            listed.on_write(store, segment)
            await start(store, segment)

        async def observed_complete(store, before, after, begun=None):
            if begun is not None:
                listed.on_write(store, begun)
            await complete(store, before, after, begun)

        async def observed_swap(store, before, after):
            listed.on_write(store, after)
            await self._before_swap(store)
            try:
                await swap(store, before, after)
            except LedgerError as error:
                self.counts[f"refused: {type(error).__name__}"] += 1
                raise

        changed = {"load": observed_load, "start": observed_start}
        changed |= {"complete": observed_complete, "replace": observed_swap}
        with ExitStack() as stack:
            stack.enter_context(super()._observed())
            stack.enter_context(mock.patch.multiple(cls, **changed))
            yield

    async def _story(self):
        self.clients.append(asyncio.create_task(self.auditor.run()))
        await super()._story()

    def _unrest(self):
        return super()._unrest() or self._dirt()

    def _dirt(self):
        """Return what is to be cleaned and is not, or ""."""
        if self.oracle.rules.lag_ms == _HOUR_MS:
            return ""
        for index in range(self.partitions):
            # A segment without a byte is cleaned once another one is.
            for each in self.leading(index).stream.cleanable_segments():
                if each.record_count and not each.cleaned:
                    return f"partition {index} is dirty from {each.start_sequence_id} on: " + str(
                        [
                            (row.cleanable, row.progress, row.error, row.not_before_s)
                            for host in self.hosts
                            for row in (host.cleaner.reports() if host.serving else ())
                            if row.partition == index
                        ]
                    )
        return ""

    async def _check_end(self):
        await super()._check_end()
        for index in range(self.partitions):
            if not await self.auditor.audit(index, quiet=True):
                self.report("never", f"partition {index} cannot be read to its end")
            await self._check_list(index)

    async def _check_list(self, index):
        """The leader reads the ledgers that are listed."""
        until_s = asyncio.get_running_loop().time() + QUIET_S
        while True:
            leader = self.leading(index)  # None while one hands it over
            self.listed.look()
            listed = self.listed.ledgers(index)
            known = leader and {each.number: each.ledger for each in leader.stream.segments}
            if known == listed:
                return
            if asyncio.get_running_loop().time() > until_s:
                break
            await asyncio.sleep(0.1)  # the store may have merged what the leader hears of next
        self.report("zombie", f"the leader of {index} reads {known}, listed is {listed}")
