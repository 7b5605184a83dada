"""A cluster under recorded load, and a method for each harm that returns what it did to clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from tests.cluster.ownership_rig import OwnershipRig, cpu_ticks
from tests.histories.background import Background
from tests.histories.checker import Finding, check
from tests.histories.history import OK, Key, Op
from tests.histories.raw_clients import Witness
from tests.histories.recorder import HARM, Recorder
from tests.histories.workload import GROUP, Workload, make_topic
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until
from tests.peers.zookeeper import HOWS

TOPIC = "judged"
SESSION_MS = 1_000  # short: stages wait for its end
COPIES = 3
GOES_ON_S_MAX = 60.0
CALM_S = 3.0
MEMBERS = 2  # of the group: one of each kind of client
ASK_S_MAX = 5.0
WARM_S = 2.0  # clients, and our own imports, are at work
HARM_S = 3.0  # of a server of ZooKeeper: three sessions
PAUSE_S = 10.0  # of a zombie: many sessions
WITNESSED = 0.7  # seconds of requests before the pause
PAUSES_MAX = 3


class Outage(NamedTuple):
    """How long nobody could write to some partitions, the slowest of them.

    After a kill -9: until the next successful write; else the longest time between two.
    """

    node: int
    keys: list[Key]
    worst_s: float  # of anybody
    by_client: dict[str, float]  # the same, by process
    idle: float = 1.0  # share of the processors that nobody used meanwhile


class Zombie(NamedTuple):
    """What a node said after it was stopped, of what it was asked.

    `answers` are all of them, refusals too; it may also have closed its connections.

    `late` acknowledgements are of records that were sent before: it may have been on the way.
    """

    node: int
    acks: int
    late: int
    reads: int
    answers: int
    asked: int


class Stage:
    """Everything runs on entry, and has ended on exit. Calls block."""

    goes_on_s_max = GOES_ON_S_MAX

    def __init__(
        self,
        directory: Path,
        *,
        gateways: int = 3,
        partitions: int = 6,
        pace: float = 2.0,
        options: Sequence[str] = (),
        ensemble: bool = False,
        bookies: int = 3,
        proxied: bool = False,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.directory = directory
        self.recorder = Recorder()
        self._partitions = partitions
        self._pace = pace
        self._background = Background()
        self._turn = -1
        self.rig = OwnershipRig(
            directory,
            self._background,
            gateways=gateways,
            bookies=bookies,
            proxied=proxied,
            ensemble=ensemble,
            session_ms=session_ms,
        )
        for gateway in self.rig.gateways:
            gateway.options += options

    def __enter__(self) -> Self:
        self._background.start()
        try:
            self.rig.start()
            self.keys = make_topic(self.rig.gateways.bootstrap, TOPIC, self._partitions, COPIES)
            self.rig.wait_led(self.keys)
            addresses = self.rig.addresses
            self.load = Workload(self.recorder, addresses, self.keys, pace=self._pace)
            self._background.run(self.load.start())
            self.rest(WARM_S)
            self.wait_written("clients to begin")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if hasattr(self, "load"):
            self.load.stop()
        self.rig.stop()
        self._background.stop()

    # -- what clients see ------------------------------------------------------------------------

    def rest(self, seconds: float) -> None:
        """Load alone."""
        threading.Event().wait(seconds)

    def since(self, at_s: float, keys: Sequence[Key]) -> dict[Key, dict[str, float]]:
        """Of each key, and each writer: when its first record sent after `at_s` was acknowledged.

        What was sent before may have been acknowledged by one who is gone.
        """
        found: dict[Key, dict[str, float]] = {key: {} for key in keys}
        for op in reversed(self.recorder.ops[:]):
            if op.end_s < at_s:
                break  # calls are noted when they end
            if op.kind != "send" or op.result != OK or op.start_s <= at_s:
                continue
            for key in found.keys() & {key for key, _, _ in op.value}:
                found[key][op.process] = op.end_s  # the first one stays
        return found

    def gaps(self, node: int, keys: Sequence[Key], at_s: float) -> Outage:
        """The longest time since `at_s` without an acknowledgement: of a key, of a client."""
        told: dict[Key, list[tuple[float, str]]] = {key: [] for key in keys}
        for op in self.recorder.ops[:]:
            if op.kind == "send" and op.result == OK and op.end_s > at_s - 1.0:
                for key in told.keys() & {key for key, _, _ in op.value}:
                    told[key].append((op.end_s, op.process))
        by_client: dict[str, float] = {}
        for acks in told.values():
            for process in {process for _, process in acks}:
                gap_s = _longest([end_s for end_s, who in acks if who == process])
                by_client[process] = max(by_client.get(process, 0.0), gap_s)
        worst_s = max(_longest([end_s for end_s, _ in acks]) for acks in told.values())
        return Outage(node, list(keys), worst_s, by_client)

    def calm(self) -> None:
        """Wait until what was done before is over.

        No client complains or is rebalanced for a while, and the group has its two members. A
        member that hears nothing from a stopped coordinator for a session joins under a new id;
        the rebalance then lasts until the old id's session has ended at the next coordinator.
        """
        said, since_s = -1, 0.0

        def calm() -> bool:
            nonlocal said, since_s
            now = self.recorder.errors.total() + self.recorder.rebalances.total()
            if now != said or not self._group_is_whole():
                said, since_s = now, time.monotonic()
            return time.monotonic() - since_s > CALM_S

        wait_until(calm, "clients to be calm", self.goes_on_s_max, pause_s=0.2)

    def _group_is_whole(self) -> bool:
        """Return whether the group is stable, with each member of the load once."""
        admin = AdminClient({"bootstrap.servers": self.load.bootstrap, "log_level": 0})
        described = admin.describe_consumer_groups([GROUP], request_timeout=ASK_S_MAX)
        try:
            found = described[GROUP].result(ASK_S_MAX)
        except KafkaException:
            return False
        return found.state == ConsumerGroupState.STABLE and len(found.members) == MEMBERS

    def wait_written(self, what: str, keys: Sequence[Key] = (), at_s: float = 0.0) -> None:
        """Each key took a record that was sent after `at_s`, or after now."""
        at_s = at_s or time.monotonic()

        def written() -> bool:
            self.load.fail_if_ended()
            return all(self.since(at_s, keys or self.keys).values())

        wait_until(written, what, self.goes_on_s_max, pause_s=0.1)

    # -- harm ------------------------------------------------------------------------------------

    def _note(self, what: str) -> None:
        self.recorder.note(HARM, what)

    def victim(self) -> ClusterGateway:
        """The next one in turn that leads something."""
        count = len(self.rig.gateways)
        leaders = self.rig.wait_led(self.keys).values()
        for step in range(1, count + 1):
            node = (self._turn + step) % count
            if node in leaders:
                self._turn = node
                return self.rig.gateways[node]
        raise AssertionError("nobody leads anything")

    def kill(self, *, machine: bool = False) -> Outage:
        """Kill -9 of an owner, or the loss of its machine; it comes back once others have taken
        its partitions.
        """
        victim = self.victim()
        keys = self.rig.led_by(victim.node_id, self.keys)
        before = cpu_ticks()
        what = "the loss of the machine" if machine else "kill -9"
        self._note(f"{what} of gateway {victim.node_id}")
        at_s = self.rig.kill(victim, machine=machine)
        self.wait_written("others to take over", keys, at_s)
        idle, ticks = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
        self.rest(1.0)  # slower clients
        found = self.since(at_s, keys)
        victim.begin().wait_started()
        self.wait_written("everybody to write again")
        return _outage(victim.node_id, found, at_s)._replace(idle=idle / max(1, ticks))

    def stop(self) -> tuple[int, Outage]:
        """Ended politely (its exit code), and back again."""
        victim = self.victim()
        keys = self.rig.led_by(victim.node_id, self.keys)
        self._note(f"the polite end of gateway {victim.node_id}")
        at_s = time.monotonic()
        code = victim.stop()
        self.wait_written("others to take over", keys)
        self.rest(1.0)  # slower clients
        outage = self.gaps(victim.node_id, keys, at_s)
        victim.begin().wait_started()
        self.wait_written("everybody to write again")
        return code, outage

    def pause(self, seconds: float = PAUSE_S) -> Zombie:
        """An owner stands still for so long, and goes on; a witness listens to it."""
        run = self._background.run
        victim, witness, keys = self._witnessed_pause(seconds)
        try:
            at_s = time.monotonic()
            self.rest(seconds)
            self.wait_written("others to take over", keys, at_s)
        finally:
            witness.no_more()
            victim.resume()
        run(witness.end())
        self.wait_written("everybody to write again")
        acks, late, reads = map(len, (witness.acks, witness.late, witness.reads))
        return Zombie(victim.node_id, acks, late, reads, witness.answers, witness.asked)

    def _witnessed_pause(self, seconds: float) -> tuple[ClusterGateway, Witness, list[Key]]:
        """Stop an owner whose connections to a witness live, and return what it leads.

        An owner that stood still by itself has ended them; then the next owner is stopped.
        """
        run = self._background.run
        for _ in range(PAUSES_MAX):
            victim = self.victim()
            keys = self.rig.led_by(victim.node_id, self.keys)
            address = self.rig.addresses[victim.node_id]
            witness = Witness(self.recorder, address, keys[:2], "offsets-1")
            began = run(witness.start())
            self.rest(WITNESSED)
            self._note(f"a pause of {seconds:.0f} s of gateway {victim.node_id}")
            victim.pause()
            run(witness.stopped())
            if began and witness.connected:
                return victim, witness, keys
            victim.resume()
            run(witness.end())
        raise AssertionError("owners end the connections of every witness")

    def expire(self) -> Outage:
        """The session of an owner ends, and it lives."""
        victim = self.victim()
        keys = self.rig.led_by(victim.node_id, self.keys)
        self._note(f"the end of the session of gateway {victim.node_id}")
        at_s = time.monotonic()
        self.rig.expire(victim, TOPIC)
        self.wait_written("somebody to own it again", keys)
        self.rest(1.0)
        return self.gaps(victim.node_id, keys, at_s)

    def cut(self, seconds: float = 0.3) -> Outage:
        """An owner does not reach ZooKeeper for less than a session."""
        victim = self.victim()
        keys = self.rig.led_by(victim.node_id, self.keys)
        self._note(f"a cut between gateway {victim.node_id} and ZooKeeper")
        at_s = time.monotonic()
        for proxy in self.rig.ways(victim):
            proxy.refuse()
        self.rest(seconds)
        for proxy in self.rig.ways(victim):
            proxy.heal()
        self.wait_written("writers to go on", keys)
        return self.gaps(victim.node_id, keys, at_s)

    def harm_zookeeper(self, turn: int) -> tuple[str, Outage]:
        """Kill, pause or cut off a server of the ensemble, then let it come back."""
        ensemble = self.rig.world.ensemble
        assert ensemble is not None
        mode = ("leader", "follower")[turn // len(HOWS) % 2]
        how, member = HOWS[turn % len(HOWS)], ensemble.member(mode)
        self._note(f"the {mode} of ZooKeeper was {how}")
        at_s = time.monotonic()
        ensemble.harm(member, how)
        self.rest(HARM_S)
        self.wait_written("writers to go on without a server", self.keys)
        ensemble.undo(member, how)
        self.wait_written("writers to go on", self.keys)
        return f"the {mode} of ZooKeeper was {how}", self.gaps(-1, self.keys, at_s)

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> tuple[list[Op], list[Finding]]:
        """All clients have ended, all was read once more; the history and what is wrong with it."""
        self.rig.wait_led(self.keys)
        self._background.run(self.load.end())
        ops = self.recorder.ops
        return ops, check(ops)


def _longest(times_s: list[float]) -> float:
    return max((after - before for before, after in pairwise(times_s)), default=0.0)


def _outage(node: int, found: dict[Key, dict[str, float]], at_s: float) -> Outage:
    by_client: dict[str, float] = {}
    for writers in found.values():
        for process, first_s in writers.items():
            by_client[process] = max(by_client.get(process, 0.0), first_s - at_s)
    worst_s = max(min(writers.values()) for writers in found.values()) - at_s
    return Outage(node, list(found), worst_s, by_client)
