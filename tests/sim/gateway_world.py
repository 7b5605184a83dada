"""Several gateways share one topic's stream and a few groups, over real ledgers and bookies.

Gateways are killed, cut off, paused past their session, stopped and started; clients find the
leader as Kafka's do, by asking any of them. Beside what `StreamsWorld` reports:

    zombie      acknowledged or answered as leader while another one led already
    two         two gateways may answer as leader at once
    position    a group's position was older than acknowledged, or newer than any that was sent
    history     what clients saw is no log, or positions are no register: see `tests.histories`
    orphan      a stream that nobody leads or a group that nobody answers for, after all is well
"""

import asyncio
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.port import StreamKey
from gateway.groups.coordinator import Refused
from gateway.topics import catalog
from gateway.topics.errors import TopicExists
from ledger.errors import LedgerError, NotOwner
from ledger.registry.ledger_ids import first_unused_ledger
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from tests.histories.history import INFO, OK
from tests.sim.gateway_history import Recorder, now
from tests.sim.gateway_host import NEVER, Host
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.streams_world import Producer, StreamsWorld

GATEWAYS = 3
_EVENTS = (
    *("kill", "kill", "cut", "cut", "pause", "pause", "stop", "start"),
    *("roll", "truncate", "expire", "heal", "power"),
)
ANSWER_S_MAX = 3.0  # a client gives up then: the outcome is unknown


class Group:
    """One group's position of one partition: who wrote and who read what, and when."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.attempted = -1
        self.acknowledged = -1
        self.known = {}  # by what is asked: the coordinator that answered last

    async def run(self):
        draw = self.world.draw
        while not self.world.healing:
            await asyncio.sleep(draw.expovariate(1 / 0.05))
            work = self.commit if draw.random() < 0.5 else self.fetch
            try:
                await asyncio.wait_for(work(), ANSWER_S_MAX)
            except (TimeoutError, Refused, LedgerError):
                pass

    async def coordinator(self, asked):
        """As clients know it, or as they find it; None: it is not there, or nobody says it.

        Clients ask the coordinator that they know until it refuses. The one that commits and the
        one that fetches may know different ones. Each stands for many: some find it again earlier.
        """
        host = self.known.pop(asked, None)
        if host is None or self.world.draw.random() < 0.3:
            host = await self.found()
        if host is not None and host.session.gate is not None:
            waking = asyncio.Event()
            host.told(waking.set)
            await waking.wait()
        return host if host is not None and host.serving else None

    async def found(self):
        """As FindCoordinator of any gateway says."""
        asked = self.world.any_host()
        if asked is None:
            return None
        member = await asked.cluster.coordinator(self.name)
        return None if member is None else self.world.host(member.node_id)

    def key(self):
        return TopicIdPartition(self.world.topic_id, 0)

    async def commit(self):
        host = await self.coordinator("commit")
        if host is None:
            return
        self.attempted += 1
        offset, began_s, result = self.attempted, now(), INFO
        try:
            result = await self.write(host, offset)
        finally:
            self.world.recorder.group("commit", self.name, offset, began_s=began_s, result=result)

    async def write(self, host, offset):
        """Whether it is known to be done."""
        code = await host.groups.commit(
            self.name,
            "",
            -1,
            None,
            {self.key(): CommittedOffset(offset=offset, commit_time_ms=SimClock().now_ms())},
        )
        if code is not ErrorCode.none or not host.alive:
            return INFO
        self.known["commit"] = host
        self.acknowledged = max(self.acknowledged, offset)
        return OK

    async def fetch(self):
        """Whether a gateway told the position, which is then judged."""
        host = await self.coordinator("fetch")
        if host is None:
            return False
        least, began_s = self.acknowledged, now()
        positions = await host.groups.offsets(self.name)
        self.known["fetch"] = host
        found = positions[self.key()].offset if self.key() in positions else -1
        if host.alive:
            self.world.recorder.group("fetch", self.name, found, began_s=began_s)
        if host.alive and not least <= found <= self.attempted:
            self.world.report(
                "position",
                f"{host.name}: {self.name} is at {found}, acknowledged was {least}, "
                f"sent {self.attempted}",
            )
        return host.alive

    async def fetch_in_the_end(self):
        """Fetch when all is well again. What gateways refuse is asked again, as clients do.

        Members still come then, and the group moves to another coordinator.
        """
        until_s = now() + NEVER
        while True:
            try:
                if await asyncio.wait_for(self.fetch(), ANSWER_S_MAX):
                    return
            except (TimeoutError, Refused, LedgerError):
                pass
            if now() > until_s:
                self.world.report("orphan", f"nobody tells the position of {self.name}")
                return
            await asyncio.sleep(0.05)


class ClusterOwnershipWorld(StreamsWorld):
    """Everything of one seed."""

    events_max = 8
    events = _EVENTS
    groups_count = 2

    def __init__(self, seed):
        super().__init__(seed)
        self.processes = 0
        self.recorder = Recorder()
        self.hosts = []
        self.starting = []  # tasks that start or stop a gateway
        self.final = False
        self.truncates = self.draw.random() < 0.3
        self.calm = self.draw.random() < 0.25
        self.groups = [Group(self, f"group-{at}") for at in range(self.groups_count)]
        self.metadata_faults.unsent = self.metadata_faults.reply_lost = (
            0.0 if self.draw.random() < 0.6 else 0.01
        )

    # -- gateways -----------------------------------------------------------------------------

    async def boot(self):
        catalog.uuid4 = lambda: UUID(int=self.draw.getrandbits(128))  # or no seed repeats
        quiet = SimMetadata(self.tree)
        await self.storage.start(await first_unused_ledger(quiet))
        self.hosts = [Host(self, number) for number in range(GATEWAYS)]
        await asyncio.gather(*(host.start() for host in self.hosts))
        count = len(self.storage.bookies)
        async with asyncio.timeout(NEVER):
            while True:
                try:
                    await self.hosts[0].catalog.create("t", 1, count, {})
                    break
                except TopicExists:
                    break  # the reply to an attempt before was lost
                except LedgerError:
                    await asyncio.sleep(0.1)
        self.topic_id = self.hosts[0].catalog.by_name("t").topic_id
        await self.led()

    async def led(self):
        """Somebody leads, and has opened it."""
        until_s = asyncio.get_running_loop().time() + NEVER
        while self.leading() is None:
            await asyncio.sleep(0.05)
            if asyncio.get_running_loop().time() > until_s:
                owners = [(h.name, h.serving, h.lease()) for h in self.hosts]
                self.report("orphan", f"nobody leads: {owners}")
                return

    def host(self, node_id):
        return next((h for h in self.hosts if h.node_id == node_id and h.serving), None)

    def any_host(self):
        hosts = [host for host in self.hosts if host.reachable]
        return self.draw.choice(hosts) if hosts else None

    def any_gateway(self):
        """The leader, as some gateway knows it."""
        asked = self.any_host()
        if asked is None:
            return None
        leader = asked.cluster.leader(StreamKey(self.topic_id, 0))
        return self.host(leader.node_id) or asked

    def leading(self):
        """The gateway that may answer as leader now."""
        hosts = [host for host in self.hosts if host.reachable and self.leads(host)]
        if len(hosts) > 1:
            self.report("two", f"{hosts[0].name} and {hosts[1].name} lead")
        return hosts[0] if hosts else None

    @staticmethod
    def leads(host):
        partition = host.partition
        return partition is not None and partition.readable and partition.is_leader

    def lose_answers(self):
        for sent in self.sent.values():
            if sent.state == "pending" and not sent.answering.alive:
                sent.state = "failed"

    def start_one(self, node_id):
        host = Host(self, node_id)
        self.hosts = [h for h in self.hosts if h.node_id != node_id] + [host]
        self.starting.append(asyncio.create_task(host.start()))

    # -- producing ----------------------------------------------------------------------------

    def send(self, producer, sent):
        host = producer.gateway()
        sent.attempt += 1
        self.recorder.sends(sent)
        if host is None:
            sent.state = "failed"
            return
        sent.state = "pending"
        sent.answering = host
        attempt = sent.attempt

        def on_produced(produced, partition=None):
            if not host.alive or attempt != sent.attempt or attempt in sent.answered:
                return
            sent.answered.add(attempt)
            if produced.error is ErrorCode.none:
                self.judge_answer(host, partition, sent, produced)
            producer.on_answer(sent, produced)

        def arrive():
            partition = host.partition
            if partition is None:
                asyncio.get_running_loop().call_later(0.02, on_produced, _ELSEWHERE)
                return
            partition.append(
                memoryview(sent.batch), 13, lambda produced: on_produced(produced, partition)
            )

        host.told(arrive)

    def on_acked(self, sent, offset):
        self.recorder.acked(sent, offset)
        super().on_acked(sent, offset)

    def judge_answer(self, host, partition, sent, produced):
        if produced.base_offset + sent.records > partition.high_watermark:
            self.report("lost", f"batch {sent.number} is acknowledged above the watermark")
        for other in self.hosts:
            if other is host or not other.reachable or not self.leads(other):
                continue
            if other.partition.leader_epoch > partition.leader_epoch:
                self.report("zombie", f"{host.name} acknowledges, {other.name} leads")

    # -- reading ------------------------------------------------------------------------------

    def watch(self):
        host = self.leading()
        if host is None:
            return
        partition = host.partition
        self.recorder.looks(partition)
        for name, attribute in (
            ("high_watermark", "high_watermark"),
            ("log_start", "log_start_offset"),
            ("epoch", "leader_epoch"),
        ):
            now = getattr(partition, attribute)
            if now < getattr(self, name):
                self.report("fell", f"{name} from {getattr(self, name)} to {now} at {host.name}")
            setattr(self, name, max(now, getattr(self, name)))

    @property
    def gateway(self):
        return self.leading() or self.hosts[-1]

    @property
    def partition(self):
        host = self.leading()
        return _NOBODY if host is None else host.partition

    def check_order(self, log, found):
        if self.leading() is not None:  # else there is nobody to ask for epochs
            super().check_order(log, found)

    async def read_once(self, offset, bytes_max):
        """Of a gateway that dies meanwhile no answer comes. At the end it is asked for again."""
        until_s = now() + NEVER * self.final
        while True:
            began_s = now()
            if self.leading() is not None:
                try:
                    work = super().read_once(offset, bytes_max)
                    records = await asyncio.wait_for(work, ANSWER_S_MAX)
                except TimeoutError:
                    records = None
                if records:
                    found = [
                        (each.sequence_id, self.sent[body], each.end_sequence_id)
                        for each in records
                        if (body := b"".join(each.data)[16:]) in self.sent
                    ]
                    final = self.final
                    self.recorder.polls(offset, found, began_s=began_s, final=final)
                    return records
            if asyncio.get_running_loop().time() >= until_s:
                return None
            await asyncio.sleep(0.1)

    async def check_times(self, log):
        """Look up times. A gateway that came last may be given the stream meanwhile: look again."""
        until_s = now() + NEVER
        while now() < until_s:
            try:
                await super().check_times(log)
                return
            except LedgerError:
                await asyncio.sleep(0.05)
        self.report("orphan", "nobody leads, though all was well for a while")

    # -- the story ----------------------------------------------------------------------------

    def reader_count(self):
        return 2

    def pause_before_event_s(self):
        return self.draw.expovariate(1 / self.draw.choice([0.1, 1.0]))

    async def check_end(self):
        """Check the log, then the groups' offsets and the history of all clients."""
        if not self.violations:
            self.final = True
            await self.check()
        if not self.violations:
            await asyncio.gather(*(group.fetch_in_the_end() for group in self.groups))
        for finding in self.recorder.judged(self.sent.values()):
            self.report("history", str(finding))

    async def event(self):
        """One fault, or something that happens in good days too; mostly to the leader."""
        draw = self.draw
        happens = draw.choice(self.events)
        host = draw.choice(self.hosts)
        leader = self.leading()
        if leader is not None and draw.random() < 0.6:
            host = leader
        await getattr(self, f"_{happens}")(host)

    async def _kill(self, host):
        if host.serving and not self.calm:
            host.kill()
            self.lose_answers()

    async def _cut(self, host):
        if host.serving and not self.calm:
            host.cut()
            host.heal_later()

    async def _pause(self, host):
        if host.reachable and not self.calm:
            host.pause()
            host.heal_later()

    async def _expire(self, host):
        """The store ends a session that is well."""
        if host.serving and not host.faults.cut:
            host.lose_session()

    async def _stop(self, host):
        if host.reachable and not host.faults.cut and not host.leaving:
            self.starting.append(asyncio.create_task(self.stop_one(host)))

    async def _start(self, _):
        dead = [host.node_id for host in self.hosts if not host.alive]
        if dead:
            self.start_one(self.draw.choice(dead))

    async def _heal(self, host):
        host.heal()

    async def _power(self, _):
        if self.draw.random() < 0.3:
            await self.power_cut()

    async def _roll(self, host):
        if self.leads(host):
            host.partition.stream.roll_soon()

    async def _truncate(self, host):
        if self.leads(host) and self.truncates:
            self.recorder.truncated = True
            await self.truncate()

    async def stop_one(self, host):
        await host.stop()
        self.lose_answers()

    async def power_cut(self):
        """All machines at once."""
        for host in self.hosts:
            host.kill()
        self.lose_answers()
        self.storage.power_cut()
        await self.storage.start(await first_unused_ledger(SimMetadata(self.tree)))
        for number in range(GATEWAYS):
            self.start_one(number)

    async def heal(self, producers):
        for host in self.hosts:
            host.faults.unsent = host.faults.reply_lost = 0.0
            host.heal()
        self.metadata_faults.unsent = self.metadata_faults.reply_lost = 0.0
        for node_id in [h.node_id for h in self.hosts if not h.alive]:
            self.start_one(node_id)
        self.lose_answers()
        await self.led()
        until_s = asyncio.get_running_loop().time() + NEVER
        while any(producer.window for producer in producers) or self.owed():
            for producer in producers:
                producer.step(new=False)
            await asyncio.sleep(0.05)
            self.lose_answers()
            if asyncio.get_running_loop().time() > until_s:
                owed = [s.number for s in self.sent.values() if s.state in ("pending", "failed")]
                self.report("answers", f"batches {owed[:5]} never got one")
                return
        await self.led()


class _Elsewhere:
    """What a gateway says that does not lead."""

    error = ErrorCode.not_leader_or_follower


class _Nobody:
    """In place of a partition while nobody leads."""

    readable = led = False
    high_watermark = log_start_offset = leader_epoch = 0

    def search(self, _):
        raise NotOwner("nobody leads")


_ELSEWHERE = _Elsewhere()
_NOBODY = _Nobody()


class MovingOwners(ClusterOwnershipWorld):
    """Sessions end again and again, so streams and groups move each time; few clients are there.

    `ClusterOwnershipWorld` has so many other events, and so much to check in the end, that few of
    its seeds ask a gateway that led or answered for a group before.
    """

    events_max = 30
    events = ("expire", "expire", "expire", "cut", "pause", "heal")
    groups_count = 4

    def writers(self):
        return [Producer(self, 0)]

    def reader_count(self):
        return 0

    def pause_before_event_s(self):
        return self.draw.expovariate(1 / 0.3)
