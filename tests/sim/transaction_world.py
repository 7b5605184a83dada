"""One transactional id on several coordinators, partitions and producers, with a lossy network.

The real cores decide; `transaction_hosts` carries their effects. `actions` lists what can happen
next, and `perform` lets one of it happen. A seed draws them (`run_seed`), and the exhaustive search
takes every one. Checkers compare what a read_committed reader sees with what was decided.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import PartitionTransactions, aborted_between
from gateway.core.transaction_effects import Adding, Ending
from gateway.core.transaction_states import PREPARED, TransactionState
from gateway.core.transactions import TransactionCoordinator
from tests.sim.transaction_clients import TIMEOUT_MS, Client
from tests.sim.transaction_hosts import (
    Answer,
    Append,
    Coordinator,
    Entry,
    Marked,
    Message,
    PartitionHost,
    Produce,
    SendMarkers,
    answered,
)

HEAL_STEPS = 4_000


class Violation(AssertionError):
    """A checker found an error."""


@dataclass(frozen=True)
class Rules:
    """What is simulated: the cores, which a mistake replaces, and what may go wrong."""

    protocol: int = 2
    partitions: int = 2
    # Plans of the clients: transactions of each, with their partitions and whether to commit.
    plans: tuple = ((((0, 1), True),), (((0,), True),))
    coordinator: type = TransactionCoordinator
    partition: type = PartitionTransactions
    numbered: bool = True  # markers carry a number and a leader epoch
    same_epoch: bool = False  # mistake: a takeover keeps the coordinator epoch
    late_ends: bool = False  # EndTxn of protocol 1 may be late: the gap that KIP-890 closed
    takeovers: int = 1
    failovers: int = 1
    timeouts: int = 1
    losses: int = 1
    lates: int = 1  # messages that are delivered and arrive once more, at any later time
    repeats: int = 0  # requests that are sent again although they were not lost
    given_up: int = 0  # writes that a client no longer waits for; it aborts instead
    snapshots: int = 1
    # Kinds of messages and records that take no time, so that there are fewer orders.
    instant: frozenset = field(default_factory=frozenset)


FAULTS = (
    *("takeovers", "failovers", "timeouts", "losses"),
    *("lates", "repeats", "given_up", "snapshots"),
)


class Tag(NamedTuple):
    """One transaction of a client, however often it is sent."""

    producer_id: int
    epoch: int
    size: int  # the partitions that it writes one record to


class World:
    """The state of one run."""

    def __init__(self, rules: Rules):
        self.rules = rules
        self.now_ms = 0
        self.next_producer_id = 100
        self.log: list[tuple] = []  # the durable transaction log: id and metadata
        self.coordinators: list[Coordinator] = []
        self.partitions = [PartitionHost(index, rules) for index in range(rules.partitions)]
        self.clients = [
            Client(index, rules.protocol, plan) for index, plan in enumerate(rules.plans)
        ]
        self.network: list[Message] = []
        self.late: list[Message] = []  # further copies, which nobody waits for
        self.left = {name: getattr(rules, name) for name in FAULTS}
        self.tags: dict[int, Tag] = {}
        # By tag: "commit" or "abort", from the time on at which that is durable.
        self.outcomes: dict[int, str] = {}
        self.acknowledged: dict[int, bool] = {}  # tags whose client received the outcome
        self.exposed = [0] * rules.partitions  # the last stable offset that readers saw
        self._take_over(0)

    # -- what can happen ------------------------------------------------------------------------

    def actions(self):
        """All that can happen next, in an order that depends on the state only."""
        found = [("deliver", at) for at in range(len(self.network))]
        found += [("arrive", at) for at in range(len(self.late))]
        found += [("flush log", c.index) for c in self.coordinators if c.queue]
        found += [("flush", p.index) for p in self.partitions if p.queue]
        for client in self.clients:
            if not client.ended:
                found += self._requests(client)
        found += self._lost_markers()
        return found + self._faults()

    def _requests(self, client):
        if client.waiting is None or self._is_lost(client):
            yield ("request" if client.number or not client.index else "start", client.index)
        elif self.left["repeats"] and self._may_be_late(client.waiting):
            yield ("repeat", client.index)
        if client.waiting is not None and client.step == "write" and self.left["given_up"]:
            yield ("give up", client.index)

    def _faults(self):
        found = []
        current = self.coordinators[-1]
        if self.left["takeovers"]:
            found += [("takeover", kept) for kept in range(len(current.queue) + 1)]
        if self.left["failovers"]:
            for one in self.partitions:
                found += [("failover", one.index, kept) for kept in range(len(one.queue) + 1)]
        if self.left["timeouts"] and self.ongoing():
            found.append(("timeout",))
        if self.left["losses"]:
            found += [("lose", at) for at in range(len(self.network))]
        if self.left["lates"]:
            found += [
                ("delay", at) for at, one in enumerate(self.network) if self._may_be_late(one)
            ]
        if self.left["snapshots"]:
            found += [("snapshot", one.index) for one in self.partitions if one.log]
        return found

    def _may_be_late(self, message):
        """Protocol 1 has no defence against a late EndTxn or AddPartitionsToTxn of a client."""
        if self.rules.protocol == 2 or message.to[0] != "coordinator":
            return True
        if isinstance(message.body, Ending):
            return self.rules.late_ends
        return not isinstance(message.body, Adding) or message.back[0] == "verify"

    def ongoing(self):
        core = self.coordinators[-1].core
        return any(one.state is TransactionState.ONGOING for one in core.metadata)

    def _is_lost(self, client):
        """True if no answer to the client's request can come."""
        number, back = client.number, ("client", client.index, client.number)
        for message in self.network:
            if message.back == back or (message.to == back[:2] and message.back == number):
                return False
            if isinstance(message.body, Produce) and message.body.client == client.index:
                return False
        for one in self.coordinators:
            for entry in one.core._entries.values():
                if entry.waiter == back:
                    return False
        return not any(self._holds(one, client.index) for one in self.partitions)

    def _holds(self, host, client):
        for message, _ in host.parked.values():
            if message.body.client == client and self._will_be_verified(host):
                return True
        return any(
            message.to == ("client", client) for _, messages in host.queue for message in messages
        )

    def _will_be_verified(self, host):
        """True if the answer to a question of this partition may still come."""
        ours = ("partition", host.index)
        if any(one.to == ours or self._asks(one.back, host.index) for one in self.network):
            return True
        entries = (e for one in self.coordinators for e in one.core._entries.values())
        return any(self._asks(entry.waiter, host.index) for entry in entries)

    @staticmethod
    def _asks(back, index):
        return isinstance(back, tuple) and back[0] in ("verify", "added") and back[1] == index

    def _lost_markers(self):
        """Markers without an answer, which their coordinator gives up and sends again."""
        found = []
        for one in self.coordinators:
            for partition, marker in sorted(one.sent.items()):
                copies = list(self.network)
                copies += [m for p in self.partitions for _, ms in p.queue for m in ms]
                if not any(_is_of(one, marker, partition) for one in copies):
                    found.append(("resend", one.index, partition))
        return found

    # -- letting it happen ----------------------------------------------------------------------

    def perform(self, action):
        getattr(self, "_do_" + action[0].replace(" ", "_"))(*action[1:])
        self._settle()
        self.check()

    def _settle(self):
        """Let everything happen that takes no time in this world."""
        while self._settle_one():
            pass

    def _settle_one(self):
        instant = self.rules.instant
        for at, message in enumerate(self.network):
            if message.to[0] in instant:
                self._do_deliver(at)
                return True
        for one in self.partitions:
            data = one.queue and isinstance(one.queue[0][0].content, Produce)
            if data and "data" in instant:
                self._do_flush(one.index)
                return True
        return False

    def _do_deliver(self, at):
        self._deliver(self.network.pop(at))

    def _do_arrive(self, at):
        self._deliver(self.late.pop(at))

    def _do_lose(self, at):
        self.left["losses"] -= 1
        self.network.pop(at)

    def _do_delay(self, at):
        self.left["lates"] -= 1
        self.late.append(self.network[at])
        self._do_deliver(at)

    def _deliver(self, message):
        kind, index = message.to
        if kind == "coordinator":
            host = self.coordinators[index]
            self._carry_out(host, host.handle(message, self.now_ms))
        elif kind == "partition":
            self._send(self.partitions[index].handle(message, self.now_ms))
        else:
            ended = self.clients[index].answer(message.back, message.body)
            if ended is not None:
                self.acknowledged[ended[0]] = ended[1]

    def _send(self, messages):
        for one in messages:
            if one.to == ("coordinator", -1):  # the one that metadata names now
                one = one._replace(to=("coordinator", len(self.coordinators) - 1))
            self.network.append(one)

    def _carry_out(self, host, effects):
        for effect in effects:
            if isinstance(effect, Append):
                host.queue.append(effect)
            elif isinstance(effect, Answer):
                self.network.append(answered(effect))
            elif isinstance(effect, SendMarkers):
                for partition in sorted(one.partition for one in effect.marker.partitions):
                    host.sent[partition] = effect.marker
                    self._send_marker(host, partition, effect.marker)
            elif host is self.coordinators[-1]:
                self._take_over(0)

    def _send_marker(self, host, partition, marker):
        leader_epoch = self.partitions[partition].core.leader_epoch
        back = ("coordinator", host.index)
        self.network.append(Message(("partition", partition), (marker, leader_epoch), back))

    def _do_resend(self, index, partition):
        host = self.coordinators[index]
        marker = host.sent.pop(partition)
        given_up = Marked(marker, partition, ErrorCode.request_timed_out)
        self._carry_out(host, host.handle(Message(("coordinator", index), given_up), self.now_ms))

    def _do_request(self, index):
        self._send([self.clients[index].next_request(self._new_tag)])

    _do_start = _do_request

    def _do_give_up(self, index):
        self.left["given_up"] -= 1
        self.clients[index].give_up()

    def _do_repeat(self, index):
        self.left["repeats"] -= 1
        self._do_request(index)

    def _new_tag(self, client):
        tag = len(self.tags) + 1
        self.tags[tag] = Tag(client.producer_id, client.epoch, len(client.left))
        return tag

    def _do_flush(self, index):
        host = self.partitions[index]
        self._send(host.flush())

    def _do_flush_log(self, index):
        """The oldest record of a coordinator becomes durable, or fails if it was fenced."""
        host = self.coordinators[index]
        if host is not self.coordinators[-1]:
            host.queue.clear()
            self._carry_out(host, host.core.abandon(ErrorCode.not_coordinator))
            return
        append = host.queue.pop(0)
        self._on_durable(append)
        self._carry_out(host, host.core.on_appended(append, self.now_ms))

    def _on_durable(self, append):
        self.log.append((append.transactional_id, append.metadata))
        metadata = append.metadata
        if metadata is None or metadata.state not in PREPARED:
            return
        last = metadata.epoch - 1 if metadata.bumps_epoch else metadata.epoch
        commit = metadata.state is TransactionState.PREPARE_COMMIT
        for tag, one in self.tags.items():
            if one.producer_id == metadata.producer_id and one.epoch <= last:
                self.outcomes.setdefault(tag, "commit" if commit else "abort")

    def _take_producer_id(self):
        self.next_producer_id += 1
        return self.next_producer_id

    def _do_takeover(self, kept):
        self.left["takeovers"] -= 1
        self._take_over(kept)

    def _take_over(self, kept):
        """Begin a new coordinator. The first `kept` records of the old queue are durable."""
        epoch = 0
        if self.coordinators:
            old = self.coordinators[-1]
            old.lease = False
            for append in old.queue[:kept]:
                self._on_durable(append)
            epoch = old.core.coordinator_epoch + (0 if self.rules.same_epoch else 1)
        level = 2 if self.rules.protocol == 2 else 0
        core = self.rules.coordinator(epoch, self._take_producer_id, transaction_version=level)
        host = Coordinator(len(self.coordinators), core)
        self.coordinators.append(host)
        for transactional_id, metadata in self.log:
            core.load(transactional_id, metadata and replace(metadata, last_epoch=-1))
        self._carry_out(host, core.start(self.now_ms))

    def _do_failover(self, index, kept):
        self.left["failovers"] -= 1
        self.partitions[index].fail_over(kept, self.now_ms)

    def _do_snapshot(self, index):
        self.left["snapshots"] -= 1
        self.partitions[index].take_snapshot()

    def _do_timeout(self):
        self.left["timeouts"] -= 1
        self.now_ms += TIMEOUT_MS + 1
        host = self.coordinators[-1]
        self._carry_out(host, host.core.tick(self.now_ms))

    # -- checkers -------------------------------------------------------------------------------

    def check(self):
        """LSO never falls; K3 aborted read; K4 precommitted read; an aborted commit."""
        for host in self.partitions:
            stable = host.core.stable_offset(len(host.log))
            before = self.exposed[host.index]
            if stable < before:
                raise Violation(f"LSO of partition {host.index} fell from {before} to {stable}")
            self._check_visible(host, before, stable)
            self.exposed[host.index] = stable
        for tag, commit in self.acknowledged.items():
            if commit and self.outcomes.get(tag) != "commit":
                raise Violation(f"commit of transaction {tag} was acknowledged and not decided")

    def _check_visible(self, host, start, end):
        for entry in host.log[start:end]:
            if not isinstance(entry.content, Produce):
                continue
            tag = entry.content.tag
            outcome = self.outcomes.get(tag)
            if is_visible(host, entry):
                if outcome == "abort":
                    raise Violation(f"K3 aborted read of transaction {tag}")
                if outcome is None:
                    raise Violation(f"K4 precommitted read of transaction {tag}")
            elif outcome == "commit":
                raise Violation(f"transaction {tag} is committed and shown as aborted")

    def check_end(self):
        """Every transaction ended; an acknowledged commit is on every partition or on none."""
        for host in self.partitions:
            if host.core.stable_offset(len(host.log)) != len(host.log) or host.queue:
                raise Violation(f"a transaction of partition {host.index} never ends")
            self._check_visible(host, 0, len(host.log))
        for metadata in self.coordinators[-1].core.metadata:
            if metadata.state in (*PREPARED, TransactionState.ONGOING):
                raise Violation(f"{metadata.transactional_id} stays {metadata.state.kafka_name}")
        written = [
            (host.index, entry.content)
            for host in self.partitions
            for entry in host.log
            if isinstance(entry.content, Produce)
        ]
        if len(written) != len(set(written)):
            raise Violation("a record is in the log twice")
        for tag, commit in self.acknowledged.items():
            found = sum(one.tag == tag for _, one in written)
            if commit and found != self.tags[tag].size:
                raise Violation(f"torn transaction {tag}: {found} records")


def is_visible(host, entry: Entry):
    """True if a read_committed reader returns this record."""
    at = entry.offset
    aborted = aborted_between(iter((host.core.aborted,)), at, at + 1)
    return not any(
        one.producer_id == entry.content.producer_id and one.first_offset <= at <= one.last_offset
        for one in aborted
    )


def _is_of(message, marker, partition):
    """True if this is the marker for the partition, or the answer to it."""
    if isinstance(message.body, Marked):
        return message.body.partition == partition and message.body.marker == marker
    if message.to != ("partition", partition) or not isinstance(message.body, tuple):
        return False
    return message.body[0] == marker


def random_rules(draw, protocol):
    """Rules of one seed: more clients, transactions and faults than a search can afford."""
    plans = []
    partitions = draw.randint(1, 3)
    for _ in range(draw.randint(1, 3)):
        plan = []
        for _ in range(draw.randint(1, 5)):
            size = draw.randint(1, min(partitions, 2))
            chosen = tuple(draw.sample(range(partitions), size))
            plan.append((chosen, draw.random() < 0.7))
        plans.append(tuple(plan))
    most = {"takeovers": 3, "failovers": 3, "timeouts": 2, "losses": 6, "lates": 6, "repeats": 4}
    most |= {"given_up": 2, "snapshots": 4}
    faults = {name: draw.randint(0, top) for name, top in most.items()}
    return Rules(protocol, partitions, tuple(plans), **faults)


def run_seed(seed, **changes):
    """Return the error found with this seed, or "" if none was found."""
    draw = random.Random(f"transactions {seed}")
    world = World(replace(random_rules(draw, 1 + seed % 2), **changes))
    try:
        walk(world, draw)
        heal(world, draw)
        world.check_end()
    except Violation as error:
        return f"Violation: {error}"
    except AssertionError as error:
        return f"AssertionError: {error}"
    return ""


RARE = frozenset(
    (
        *("takeover", "failover", "timeout", "lose", "delay", "arrive"),
        *("snapshot", "repeat", "give up", "start"),
    )
)


def walk(world, draw, steps=400):
    """Let things happen in an order drawn by seed, faults less often."""
    rare = draw.choice((0.03, 0.1, 0.2))
    for _ in range(steps):
        actions = world.actions()
        wanted = draw.random() < rare
        some = [one for one in actions if (one[0] in RARE) == wanted] or actions
        if not some:
            return
        world.perform(draw.choice(some))


def heal(world, draw):
    """End the faults, and let everything happen that is on its way."""
    for _ in range(HEAL_STEPS):
        world.left = dict.fromkeys(world.left, 0)
        actions = world.actions()
        if not actions:
            if not world.ongoing():
                return
            world.left["timeouts"] = 1
            actions = [("timeout",)]
        world.perform(draw.choice(actions))
    raise Violation(f"the world never rests: {world.actions()[:5]}")
