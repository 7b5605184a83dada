"""The bookies port over simulated links: latency, loss, cuts, crashes, all by seed.

`Network` joins hosts (writers, recoverers, readers) to bookies. `SimBookies` is one host's port.
Adds to one bookie arrive in the order they were sent, as on one connection; reads run beside
them. A lost request or reply is UNREACHABLE after the timeout, and the bookie may have acted; what
was sent arrives even if its sender no longer waits.
"""

import asyncio
from dataclasses import dataclass

from ledger.ports.bookies import (
    DEFAULT_RACK,
    BookieInfo,
    BookieStats,
    EntriesReply,
    LocateReply,
    ReadManyReply,
    ReadReply,
    Status,
)

DENIED = Status.PERMISSION_DENIED


@dataclass
class Weather:
    """How bad the links are. Rates are probabilities per message."""

    latency_s: float = 0.001  # mean, each way
    tail_rate: float = 0.1  # so often a message takes `tail_factor` times as long
    tail_factor: float = 50.0
    loss: float = 0.0
    timeout_s: float = 1.0


class Observer:
    """Is told what crosses the network; does nothing. Replies are told as the bookie gives them,
    whether or not they arrive.
    """

    def on_fence_reply(self, host, bookie, ledger, reply):
        """`bookie` answered a read with the fence flag."""

    def on_fence_heard(self, host, bookie, ledger, entry, reply):
        """That answer reached `host`."""

    def on_read_reply(self, bookie, ledger, first, last, reply):
        """`bookie` answered a read of these entries."""

    def on_lac_reply(self, bookie, ledger, reply):
        """`bookie` answered with a LAC."""

    def on_list_reply(self, bookie, ledger, reply):
        """`bookie` listed what it has."""

    def on_recovery_read(self, host, bookie, ledger, entry):
        """`host` asks for an entry with the fence flag."""


class Network:
    """All links. `cut(host, bookie)` stops messages until `heal`: both ways or one."""

    def __init__(self, draw, weather, bookies):
        self.draw = draw
        self.weather = weather
        self.bookies = bookies  # by id
        self.cuts = set()  # both ways
        self.cut_requests = set()
        self.cut_replies = set()
        # (host, bookie) whose requests the bookie refuses: the host's certificate has no role there
        self.denied = set()
        self.slow = {}  # by (host, bookie): so many times slower than the others
        self.racks = {}  # by bookie; the default rack where none is set
        self.on_added = lambda bookie, ledger, entry, body, recovery: None  # says the bookie
        self.observer = Observer()
        self._lanes = {}  # when the last add of one (host, bookie) arrives

    def cut(self, host, bookie, way="both"):
        cuts = {"both": self.cuts, "requests": self.cut_requests, "replies": self.cut_replies}
        cuts[way].add((host, bookie))

    def mend(self):
        self.cuts.clear()
        self.cut_requests.clear()
        self.cut_replies.clear()
        self.denied.clear()
        self.slow.clear()

    def heal(self):
        self.mend()
        self.weather.loss = 0.0
        self.weather.tail_rate = 0.0

    def delay_s(self, host, bookie):
        weather = self.weather
        delay_s = self.draw.expovariate(1 / weather.latency_s)
        if self.slow:
            delay_s *= self.slow.get((host, bookie), 1)
        if self.draw.random() < weather.tail_rate:
            delay_s *= weather.tail_factor
        return delay_s

    def request_lost(self, host, bookie):
        return (host, bookie) in self.cut_requests or self._lost(host, bookie)

    def reply_lost(self, host, bookie):
        return (host, bookie) in self.cut_replies or self._lost(host, bookie)

    def _lost(self, host, bookie):
        return (host, bookie) in self.cuts or self.draw.random() < self.weather.loss

    def arrival_s(self, lane):
        """When an add sent now arrives: never before one sent earlier on the same lane."""
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s + self.delay_s(*lane), self._lanes.get(lane, 0.0) + 1e-9)
        self._lanes[lane] = at_s
        return at_s


class SimBookies:
    """One host's port to all bookies of a network."""

    def __init__(self, network, host):
        self.network = network
        self.host = host
        self.dead = False  # a dead host hears nothing more; what it sent still arrives
        self.surprise = None  # (an exception, after the reply or before): raised once
        self._paused = None

    def pause(self):
        """The process stands still: what comes for it waits."""
        if self._paused is None:
            self._paused = []

    def resume(self):
        """It goes on, and all that has come is there at once."""
        waiting, self._paused = self._paused or (), None
        for tell, news in waiting:
            self.tell(tell, news)

    def tell(self, tell, news):
        """The process hears `news`, when it can."""
        if self.dead:
            return
        if self._paused is None:
            tell(news)
        else:
            self._paused.append((tell, news))

    def available(self):
        return tuple(sorted(b for b, one in self.network.bookies.items() if one.writable))

    def registered(self):
        racks = self.network.racks
        return {
            name: BookieInfo(
                *(str(name), 1, racks.get(name, DEFAULT_RACK)),
                read_only=not bookie.writable,
                start=bookie.start_id,
            )
            for name, bookie in self.network.bookies.items()
            if bookie.up
        }

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        if self.dead:
            return  # what is left of the process sends nothing
        _AddUnderWay(self, bookie, on_added).send(ledger, entry, master_key, tuple(body), recovery)

    async def read(self, bookie, ledger, entry, *, fence_key=None):
        observer = self.network.observer
        if fence_key is None:

            def heard(reply):
                observer.on_read_reply(bookie, ledger, entry, entry, reply)
        else:
            observer.on_recovery_read(self.host, bookie, ledger, entry)

            def heard(reply):
                observer.on_fence_reply(self.host, bookie, ledger, reply)
                observer.on_read_reply(bookie, ledger, entry, entry, reply)

        reply = await self._ask(
            *(bookie, lambda b: b.read(ledger, entry, fence_key=fence_key), heard),
            denied=ReadReply(DENIED),
        )
        if reply is None:
            return ReadReply(Status.UNREACHABLE)
        if fence_key is not None:
            observer.on_fence_heard(self.host, bookie, ledger, entry, reply)
        return reply

    async def fence_many(self, bookie, ledgers):
        observer = self.network.observer

        def heard(replies):
            for (ledger, _), reply in zip(ledgers, replies, strict=True):
                observer.on_fence_reply(self.host, bookie, ledger, reply)
                observer.on_read_reply(bookie, ledger, -1, -1, reply)

        for ledger, _ in ledgers:
            observer.on_recovery_read(self.host, bookie, ledger, -1)
        denied = [ReadReply(DENIED)] * len(ledgers)
        replies = await self._ask(bookie, lambda b: b.fence_many(ledgers), heard, denied=denied)
        if replies is None:
            return [ReadReply(Status.UNREACHABLE)] * len(ledgers)
        for (ledger, _), reply in zip(ledgers, replies, strict=True):
            observer.on_fence_heard(self.host, bookie, ledger, -1, reply)
        return replies

    async def read_many(self, bookie, ledger, first, last, max_bytes, *, from_disk=False):
        def heard(reply):
            self.network.observer.on_read_reply(bookie, ledger, first, last, reply)

        reply = await self._ask(
            bookie,
            lambda b: b.read_many(ledger, first, last, max_bytes, from_disk=from_disk),
            heard,
            denied=ReadManyReply(DENIED),
        )
        return reply or ReadManyReply(Status.UNREACHABLE)

    async def read_lac(self, bookie, ledger):
        def heard(reply):
            self.network.observer.on_lac_reply(bookie, ledger, reply)

        denied = ReadReply(DENIED)
        reply = await self._ask(bookie, lambda b: b.read_lac(ledger), heard, denied=denied)
        return reply or ReadReply(Status.UNREACHABLE)

    async def write_lac(self, bookie, ledger, master_key, lac):
        reply = await self._ask(
            bookie, lambda b: b.write_lac(ledger, master_key, lac), denied=DENIED
        )
        return Status.UNREACHABLE if reply is None else reply

    async def wait_lac(self, bookie, ledger, previous, timeout_s):
        def heard(reply):
            self.network.observer.on_lac_reply(bookie, ledger, reply)

        reply = await self._ask(
            *(bookie, lambda b: b.wait_lac(ledger, previous, timeout_s), heard),
            more_s=timeout_s,
            denied=ReadReply(DENIED),
        )
        return reply or ReadReply(Status.UNREACHABLE)

    async def list_entries(self, bookie, ledger):
        def heard(reply):
            self.network.observer.on_list_reply(bookie, ledger, reply)

        denied = EntriesReply(DENIED)
        reply = await self._ask(bookie, lambda b: b.list_entries(ledger), heard, denied=denied)
        return reply or EntriesReply(Status.UNREACHABLE)

    async def end_limbo(self, bookie, ledger, master_key, start=""):
        reply = await self._ask(
            bookie, lambda b: b.end_limbo(ledger, master_key, start), denied=DENIED
        )
        return Status.UNREACHABLE if reply is None else reply

    async def locate(self, bookie, ledger, entry):
        denied = LocateReply(DENIED)
        reply = await self._ask(bookie, lambda b: b.locate(ledger, entry), denied=denied)
        return reply or LocateReply(Status.UNREACHABLE)

    async def stats(self, bookie):
        reply = await self._ask(bookie, lambda b: b.stats(), denied=BookieStats(DENIED))
        return reply or BookieStats(Status.UNREACHABLE)

    async def _ask(self, bookie_id, ask, heard=None, more_s=0.0, denied=None):
        """The bookie's reply, or None after the timeout (and `more_s`).

        `heard(reply)` runs as the bookie gives it. A bookie that refuses the host replies `denied`
        and does nothing.
        """
        network = self.network
        self._raise_surprise(after=False)
        if bookie_id not in network.bookies:
            return None
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        timer = loop.call_later(network.weather.timeout_s + more_s, self.tell, self._end, (told,))
        question = _Question(self, bookie_id, heard, told, denied)
        loop.call_later(network.delay_s(self.host, bookie_id), question.arrive, ask)
        try:
            reply = await told
        finally:
            timer.cancel()
        self._raise_surprise(after=True)
        return reply

    def _raise_surprise(self, *, after):
        if self.surprise is not None and self.surprise[1] == after:
            (error, _), self.surprise = self.surprise, None
            raise error

    @staticmethod
    def _end(news):
        """`news` is the future and what it gets, if anything."""
        told = news[0]
        if not told.done():
            told.set_result(news[1] if len(news) > 1 else None)


class _Question:
    """One request that is no add, on its way there and back."""

    __slots__ = ("bookie_id", "denied", "heard", "port", "told")

    def __init__(self, port, bookie_id, heard, told, denied):
        self.port = port
        self.bookie_id = bookie_id
        self.heard = heard
        self.told = told
        self.denied = denied

    def arrive(self, ask):
        port, network = self.port, self.port.network
        bookie = network.bookies.get(self.bookie_id)
        lost = network.request_lost(port.host, self.bookie_id)
        if lost or bookie is None or not bookie.up:
            return
        if (port.host, self.bookie_id) in network.denied:
            self._send(self.denied)
            return
        answer = ask(bookie)
        if not isinstance(answer, asyncio.Future):
            answer = asyncio.get_running_loop().create_task(answer)
        if answer.done():
            self.answered(answer)
        else:
            answer.add_done_callback(self.answered)

    def answered(self, answer):
        if answer.cancelled():
            return
        reply = answer.result()
        if self.heard is not None and reply is not None:
            self.heard(reply)
        self._send(reply)

    def _send(self, reply):
        port, network = self.port, self.port.network
        if self.told.done() or network.reply_lost(port.host, self.bookie_id):
            return
        delay_s = network.delay_s(port.host, self.bookie_id)
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, port.tell, port._end, (self.told, reply))


class _AddUnderWay:
    """One add between a host and a bookie; tells its sender once."""

    __slots__ = ("bookie_id", "on_added", "port", "timer")

    def __init__(self, port, bookie_id, on_added):
        self.port = port
        self.bookie_id = bookie_id
        self.on_added = on_added
        self.timer = None

    def send(self, ledger, entry, master_key, body, recovery):
        port, network = self.port, self.port.network
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(
            network.weather.timeout_s, port.tell, self.tell, Status.UNREACHABLE
        )
        arrives_s = network.arrival_s((port.host, self.bookie_id))
        if network.request_lost(port.host, self.bookie_id):
            return

        def arrive():
            bookie = network.bookies.get(self.bookie_id)
            if bookie is not None and bookie.up and (port.host, self.bookie_id) in network.denied:
                answered(DENIED)
            elif bookie is not None and bookie.up:
                bookie.add(ledger, entry, master_key, body, answered, recovery=recovery)

        def answered(status):
            if status is Status.OK:
                network.on_added(self.bookie_id, ledger, entry, b"".join(body), recovery)
            if not network.reply_lost(port.host, self.bookie_id):
                delay_s = network.delay_s(port.host, self.bookie_id)
                loop.call_later(delay_s, port.tell, self.tell, status)

        loop.call_at(arrives_s, arrive)

    def tell(self, status):
        on_added, self.on_added = self.on_added, None
        if on_added is not None:
            self.timer.cancel()
            on_added(status)
