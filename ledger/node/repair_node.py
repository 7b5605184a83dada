"""A process with an auditor and a replication worker, over ZooKeeper and the bookies' port."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ledger.adapters.links.tls_identity import TlsIdentity
from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system import machine
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.zookeeper.zookeeper_access import read_access
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.client.metadata_format import ledger_path
from ledger.command_line.zookeeper_settings import ZooKeeperSecurity
from ledger.exposition import Family
from ledger.ids import BookieId, LedgerId
from ledger.losses.place import accepted_entries
from ledger.ports.bookies import BookieTransport
from ledger.ports.metadata import MetadataStore
from ledger.registry.discovery import Discovery
from ledger.registry.layout import read_instance_id
from ledger.registry.limbo_bookies import LIMBO
from ledger.registry.underreplication_format import MISSING
from ledger.repair.auditor import Auditor
from ledger.repair.config import RepairConfig
from ledger.repair.election import AuditorElection
from ledger.repair.replication_worker import RepairOutcome, RepairStatus, ReplicationWorker
from ledger.repair.underreplicated_ledgers import DRAINING
from ledger.tasks import start_restarting

if TYPE_CHECKING:
    from ledger.node.node_metrics import AuditSamples

__all__ = ["RepairNode", "new_owner"]

_LOCKED_S: Final = 1.0
_SILENT_S: Final = 1.0  # wait before a bookie that listed no entries is asked again
_SILENT_S_MAX: Final = 15.0  # longer than a dead bookie is registered: its session
_CHANCES: Final = 2**48

Stop = Callable[[], Awaitable[None]]
OnPass = Callable[[int, int], None]
"""Called with the ledgers repaired so far and the ledgers still to repair."""


class _Parts(NamedTuple):
    """The parts of a repair process, made by `RepairNode.start`."""

    store: MetadataStore
    discovery: Discovery
    worker: ReplicationWorker
    auditor: Auditor
    election: AuditorElection


class RepairNode:
    """A repair process. Call `start`, then `serve` or `once`, then `stop`, even if
    `start` failed.
    """

    def __init__(
        self,
        zookeeper: str,
        session_s: float,
        owner: BookieId,
        config: RepairConfig,
        tls: TlsIdentity | None,
        transport: BookieTransport = BookieTransport.TCP,
        security: ZooKeeperSecurity | None = None,
    ) -> None:
        self._security = security or ZooKeeperSecurity()
        self.owner = owner
        self._zookeeper = zookeeper
        self._session_s = session_s
        self._config = config
        self._tls = tls
        self._transport = transport
        self._stops: list[Stop] = []
        self._made: _Parts | None = None
        self._samples: AuditSamples | None = None  # made when they are first asked for

    async def start(self) -> None:
        """Connect and discover the bookies.

        Raises MetadataUnavailable, ForeignLayout, OpenToAnyone.
        """
        store = await connect_zookeeper(
            self._zookeeper,
            session_ms=int(self._session_s * 1000),
            make_root=False,
            access=read_access(self._security),
        )
        self._stops.append(store.close)
        await read_instance_id(store, self._zookeeper)
        discovery = Discovery(store)
        await discovery.start()
        self._stops.append(discovery.stop)
        bookies = open_bookies(discovery.registered, self._transport, self._tls)
        self._stops.append(bookies.close)
        clock = SystemClock()
        accepted = partial(accepted_entries, store)
        worker = ReplicationWorker(
            store, bookies, clock, self.owner, _chance, self._config, accepted=accepted
        )
        auditor = Auditor(
            store, bookies, clock, worker.underreplicated, self._config, accepted=accepted
        )
        self._made = _Parts(store, discovery, worker, auditor, AuditorElection(store, self.owner))

    async def stop(self) -> None:
        """Close everything. Locks and votes end with the session."""
        while self._stops:
            await self._stops.pop()()

    @property
    def warning(self) -> str:
        """The warning to log each hour, or nothing."""
        return self._security.warning

    @property
    def leads(self) -> bool:
        """True if this process is the auditor."""
        return self._parts.election.leads

    @property
    def _parts(self) -> _Parts:
        """The parts of this process. Valid after `start`."""
        assert self._made is not None
        return self._made

    def counters(self) -> dict[str, int]:
        """Return the counters since the start."""
        parts = self._parts
        return {**asdict(parts.worker.progress), "marked": parts.auditor.marked}

    def not_ready(self) -> list[str]:
        """Return why this process repairs nothing now, a sentence for each reason."""
        return [] if self._made is not None else ["it is starting"]

    async def families(self) -> list[Family]:
        """Return the samples of this process, none before `start`. Raises MetadataUnavailable."""
        if self._made is None:
            return []
        if self._samples is None:
            from ledger.node.node_metrics import AuditSamples  # most processes are never asked

            worker = self._parts.worker
            self._samples = AuditSamples(worker.underreplicated, worker.progress)
        return await self._samples.families(leads=self.leads, marked=self._parts.auditor.marked)

    async def serve(self) -> None:
        """Repair ledgers, and audit while elected. Runs until cancelled."""
        store, discovery, worker, auditor, election = self._parts
        unwatch = [
            discovery.on_changed(worker.on_bookies_changed),
            discovery.on_changed(auditor.on_bookies_changed),
            store.watch(MISSING, worker.wake),
            store.watch(DRAINING, worker.on_bookies_changed),
            store.watch(LIMBO, auditor.on_bookies_changed),
        ]
        tasks = [
            start_restarting("the replication worker", worker.run),
            start_restarting("the auditor", lambda: election.run(auditor.run)),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for disarm in unwatch:
                disarm()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def once(self, on_pass: OnPass | None = None) -> dict[LedgerId, tuple[str, ...]]:
        """Audit once, then repair as much as possible. Returns the ledgers that are left.

        These are the unrepaired ones, those of bookies that gave no answer, and those whose
        metadata does not parse, each with reasons. Raises NotEnoughBookies if no bookie is
        registered.
        """
        worker, auditor = self._parts.worker, self._parts.auditor
        loop = asyncio.get_running_loop()
        ask_until_s = math.inf  # set once a bookie was silent
        await worker.underreplicated.prepare()
        await self._audit(auditor)
        while True:
            marked = await worker.underreplicated.ledgers()
            if on_pass is not None:
                on_pass(worker.progress.ledgers, len(marked))
            outcomes = await worker.repair_all(marked)
            left = {
                ledger: one.reasons
                for ledger, one in sorted(outcomes.items())
                if one.result is RepairStatus.UNFINISHED
            }
            wait_s = _worth_waiting_s(outcomes)
            if wait_s is not None:
                await asyncio.sleep(wait_s)
            elif auditor.unanswered and loop.time() < ask_until_s:
                ask_until_s = min(ask_until_s, loop.time() + _SILENT_S_MAX)
                await asyncio.sleep(_SILENT_S)
                await self._ask_again(auditor)
            else:
                auditor.check_registered()
                left = _with_unchecked(left, auditor)
                if on_pass is not None:
                    on_pass(worker.progress.ledgers, len(left))
                return left

    async def _audit(self, auditor: Auditor) -> None:
        """Mark the ledgers of absent bookies, and ledgers with gaps in the list of a bookie."""
        await self._audit_lost(auditor, await auditor.away())
        await auditor.full_check()
        auditor.check_registered()

    async def _audit_lost(self, auditor: Auditor, away: frozenset[BookieId]) -> None:
        """Mark the ledgers of the bookies that are still absent after the delay."""
        if away and self._config.delay_s > 0:
            await asyncio.sleep(self._config.delay_s)
        auditor.check_registered()
        await auditor.audit(away)

    async def _ask_again(self, auditor: Auditor) -> None:
        """Audit silent bookies whose sessions have ended as lost, then ask the others again.

        A bookie that died shortly before the audit is registered until its session ends.
        """
        gone = auditor.silent_and_away()
        if gone:
            await self._audit_lost(auditor, gone)
        await auditor.check_again()


def new_owner() -> BookieId:
    """Return an id for this process, in locks and elections, that no other has."""
    host = socket.gethostname().partition(".")[0] or "host"
    return BookieId(f"audit-{host}-{os.getpid()}-{machine.new_instance().hex()[:8]}")


def _worth_waiting_s(outcomes: dict[LedgerId, RepairOutcome]) -> float | None:
    """Return the seconds until another pass can do more, or None if none can."""
    times_s: list[float] = []
    for one in outcomes.values():
        if one.result is RepairStatus.LOCKED:
            times_s.append(_LOCKED_S)
        elif one.progress and one.result is RepairStatus.UNFINISHED:
            times_s.append(0.0)
        elif one.retry_s is not None:
            times_s.append(one.retry_s)
    return min(times_s, default=None)


def _with_unchecked(
    left: dict[LedgerId, tuple[str, ...]], auditor: Auditor
) -> dict[LedgerId, tuple[str, ...]]:
    """Add the ledgers that may lack copies, because the auditor could not check them."""
    both = dict(left)
    for ledger, silent in auditor.unanswered.items():
        for name in sorted(silent):
            reason = f"{name} did not list its entries: check this bookie, then audit again"
            both[ledger] = (*both.get(ledger, ()), reason)
    for ledger in auditor.unreadable:
        reason = f"{ledger_path(ledger)} does not parse: restore it from a backup of the metadata"
        both[ledger] = (*both.get(ledger, ()), reason)
    return dict(sorted(both.items()))


def _chance() -> float:
    return int.from_bytes(machine.new_instance()[:6], "big") / _CHANCES
