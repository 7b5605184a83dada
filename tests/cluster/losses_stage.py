"""A cluster of six bookies behind proxies under recorded load, whose bookies lose what they have.

Each method does one harm, undoes what an operator can undo, and returns a line about it. Losses are
accepted with the commands of an operator, and noted in the history as the checker wants them. What
is lost without a harm that explains it is a fault.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from ledger.core.ledger_metadata import LedgerMetadata
from ledger.ids import EntryId, LedgerId
from tests.cluster.client import Session
from tests.cluster.gateways_stage import TOPIC, Stage
from tests.cluster.operator import Operator, Row
from tests.histories.history import OK, Key, key_of, place_of
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.losses import forget
from tests.peers.processes import ServerProcess, wait_until
from tests.peers.proxy import BOTH, TO_SERVER, Proxy

BOOKIES = 6
SESSION_S = 8  # nothing is measured here, so a busy machine may be slow
RESERVED_MIN = 1 << 31  # offsets: more than any segment holds
START_S_MAX = 180.0
AUDITS = "this process is the auditor"
HARM_S = 3.0
LONG_S = 10.0  # longer than a session
SLOW_S = 0.05
BRIEF_S = 0.5  # entries of this long are on two of three bookies only
BEHEADED_MAX = 5
ENTRIES_MIN = 6  # of a ledger that loses some
LOST_MAX = 3
PASS_S_MAX = 120.0
OPERATOR = "operator"


class Doomed(NamedTuple):
    """Entries of one closed ledger of the topic, which lie in one fragment."""

    key: Key
    ledger: int
    first: int
    last: int
    bookies: list[BookieProcess]


class Beheaded(NamedTuple):
    """The ledger of an owner that died with two of the three bookies that it wrote to."""

    key: Key
    ledger: int
    dead: list[BookieProcess]

    @property
    def told(self) -> str:
        return f"ledger {self.ledger} of {self.key}"


class LossesStage(Stage):
    """Everything runs on entry, and has ended on exit. Calls block."""

    goes_on_s_max = 240.0

    def __init__(self, directory: Path, *, seed: int, partitions: int = 4, pace: float = 5.0):
        super().__init__(directory, partitions=partitions, pace=pace, bookies=BOOKIES, proxied=True)
        self.world = self.rig.world
        self.world.zookeeper.start_s_max = START_S_MAX
        for bookie in self.world.bookies:
            bookie.session = f"{SESSION_S}s"
            bookie.start_s_max = START_S_MAX
        for gateway in self.rig.gateways:
            gateway.start_s_max = START_S_MAX
            gateway.session_ms = SESSION_S * 1000
        self.operator = Operator(self.world.zookeeper.servers)
        self.harms: Counter[str] = Counter()
        self.faults: list[str] = []
        self.accepted: list[Row] = []
        self.seed = seed
        self._draw = random.Random(seed)
        self._late = 0

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.world.auditor()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _begin(self, harm: str, of: str) -> str:
        self.harms[harm] += 1
        self._note(f"{harm} of {of}")
        return f"{harm}: {of}"

    def _bookie(self) -> tuple[BookieProcess, Proxy]:
        at = self._draw.randrange(BOOKIES)
        return self.world.bookies[at], self.world.proxies[at]

    def heal(self) -> None:
        """Undo all harm to processes and connections."""
        self.world.heal()
        for gateway in self.rig.gateways:
            for proxy in self.rig.ways(gateway):
                proxy.heal()
        self.rig.gateways.heal()

    # -- harm that loses nothing -----------------------------------------------------------------

    def kill_bookie(self) -> str:
        bookie, _ = self._bookie()
        told = self._begin("kill -9", f"bookie {bookie.id}")
        bookie.kill()
        self.rest(HARM_S)
        self.wait_written("writers to go on without a bookie")
        bookie.start()
        return told

    def pause_bookie(self) -> str:
        bookie, _ = self._bookie()
        told = self._begin("SIGSTOP", f"bookie {bookie.id}")
        bookie.pause()
        try:
            self.rest(HARM_S)
            self.wait_written("writers to go on beside a bookie that sleeps")
        finally:
            bookie.resume()
        return told

    def slow_bookie(self) -> str:
        bookie, proxy = self._bookie()
        told = self._begin("+50 ms", f"bookie {bookie.id}")
        proxy.slow(latency_s=SLOW_S)
        self.rest(HARM_S)
        proxy.heal()
        self.wait_written("writers to go on beside a slow bookie")
        return told

    def cut_bookie(self) -> str:
        bookie, proxy = self._bookie()
        lane = self._draw.choice(BOTH)
        told = self._begin("cut one way", f"{lane} {bookie.id}")
        proxy.cut_one_way(lane)
        self.rest(HARM_S)
        self.wait_written("writers to go on past a bookie that is cut off")
        _reconnect([proxy])
        return told

    def cut_gateway(self) -> str:
        """An owner and ZooKeeper reach each other one way only, for longer than a session."""
        victim = self.victim()
        lane = self._draw.choice(BOTH)
        told = self._begin("cut one way", f"gateway {victim.node_id} and ZooKeeper, {lane}")
        for proxy in self.rig.ways(victim):
            proxy.cut_one_way(lane)
        self.rest(LONG_S)
        self.wait_written("others to take over")
        _reconnect(self.rig.ways(victim))
        self.wait_written("everybody to write again")
        return told

    def kill_gateway(self) -> str:
        self.harms["kill -9"] += 1
        return f"kill -9: gateway {self.kill().node}"

    def pause_gateway(self) -> str:
        self.harms["SIGSTOP"] += 1
        zombie = self.pause(LONG_S)
        if zombie.acks > zombie.late or zombie.reads:
            self.faults.append(f"gateway {zombie.node} answered as an owner after it slept")
        return f"SIGSTOP: gateway {zombie.node}"

    def harm_zookeeper_alone(self) -> str:
        """The only server is killed, or stands still for longer than a session."""
        server = self.world.zookeeper
        how = self._draw.choice(("kill -9", "SIGSTOP"))
        told = self._begin(how, "ZooKeeper")
        if how == "SIGSTOP":
            server.pause()
            self.rest(LONG_S)
            server.resume()
        else:
            server.kill()
            server.start()
        self.wait_written("writers to go on with ZooKeeper")
        return told

    # -- bookies that lose all that they had, or some of it --------------------------------------

    def wipe(self) -> str:
        """A bookie comes back with an empty disk, and its old id is removed."""
        bookie, _ = self._bookie()
        old = bookie.id
        told = self._begin("wiped", f"bookie {old}")
        self._wipe(bookie)
        self.operator.decommission(old)
        self._check_nothing_lost(told)
        return told

    def put_back(self) -> str:
        """A bookie starts from an old copy of its directory."""
        bookie, _ = self._bookie()
        told = self._begin("old directory", f"bookie {bookie.id}")
        copy = self.directory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        bookie.stop()
        shutil.copytree(bookie.data, copy)
        bookie.start()
        self.rest(HARM_S)
        self.wait_written("writers to write what the copy lacks")
        bookie.kill()
        shutil.rmtree(bookie.data)
        copy.rename(bookie.data)
        bookie.start()
        if "may have lost entries" not in bookie.output():
            self.faults.append(f"{told} was not noticed")
        self._repair()
        self._check_nothing_lost(told)
        return told

    def delete_two(self) -> str:
        """Two of three copies are deleted from disk; readers do not notice, and repair does."""
        doomed = self._doomed()
        told = self._begin("two of three copies deleted", _words(doomed))
        self.world.end_auditors()
        self._delete(doomed, self._draw.sample(doomed.bookies, 2))
        stop = self._read_late(doomed.key)
        self._pass(doomed, self._end_of(doomed.key), "readers to read the copy that is left")
        stop()
        self._repair()
        self.operator.run("ledger", "verify", str(doomed.ledger))
        self._check_nothing_lost(told)
        self.world.auditor()
        return told

    # -- losses ----------------------------------------------------------------------------------

    def delete_three(self) -> str:
        """All copies are deleted from disk; readers wait until an operator gives them up."""
        doomed = self._doomed()
        told = self._begin("three of three copies deleted", _words(doomed))
        self.world.end_auditors()
        self._delete(doomed, doomed.bookies)
        self._accept(doomed)
        self.world.auditor()
        return told

    def delete_two_and_wipe(self) -> str:
        """Two copies are deleted, and the bookie with the third one loses its disk."""
        doomed = self._doomed()
        wiped, *others = self._draw.sample(doomed.bookies, 3)
        old = wiped.id
        told = self._begin("two copies deleted, a bookie wiped", f"{old}, {_words(doomed)}")
        self.world.end_auditors()
        self._delete(doomed, others)
        self._wipe(wiped)
        self._accept(doomed, old)
        auditor = self.world.auditor()
        wait_until(lambda: AUDITS in auditor.output(), "an auditor", START_S_MAX, pause_s=0.2)
        self.operator.decommission(old)
        return told

    def close_by_force(self) -> str:
        """An owner and two bookies of its ledger die; an operator closes the ledger by force."""
        victim = self.victim()
        doomed = self.bring_down(victim)
        told = self._begin("forced close", f"{doomed.told}, gateway {victim.node_id}")
        closed = self.force(doomed)
        self.wait_written("others to take over behind the forced close", [doomed.key])
        bring_up(*doomed.dead, victim)
        self.wait_written("everybody to write again")
        return f"{told}, closed at entry {closed['last_entry']}"

    def bring_down(self, victim: ClusterGateway) -> Beheaded:
        """Kill an owner and the only two bookies with its newest entries."""
        for _ in range(BEHEADED_MAX):
            key = self._draw.choice(self.rig.led_by(victim.node_id, self.keys))
            ledger = self._open_ledger(key)
            ensemble = self._members(self._metadata(ledger).last_fragment.ensemble)
            self._draw.shuffle(ensemble)
            left, *dead = ensemble
            deaf = self.world.proxies[self.world.bookies.index(left)]
            deaf.drop(TO_SERVER)
            self.rest(BRIEF_S)
            self.rig.kill(victim, machine=True)
            for bookie in dead:
                bookie.kill()
            _reconnect([deaf])
            # An operator tries without a loss first. Another owner may have closed it just before.
            self.operator.run("ledger", "recover", str(ledger), "--yes", codes=(0, 1))
            found = self._metadata(ledger)
            if not found.closed and {each.id for each in dead} <= {*found.last_fragment.ensemble}:
                return Beheaded(key, ledger, dead)
            bring_up(*dead, victim)  # the stream went on to another ledger
            self.wait_written("everybody to write again")
        raise AssertionError("the streams of a gateway never stay with their ledgers")

    def force(self, doomed: Beheaded) -> Row:
        """Close the ledger as an operator does who gives up what the dead bookies had."""
        self._wait_gone(*(bookie.id for bookie in doomed.dead))
        start_s = self.recorder.now_s()
        closed = self.operator.accept_ledger(doomed.ledger)
        rows = _in_partition(closed["accepted"], place_of(doomed.key)[1])
        self._note_accepted(rows, start_s)
        if not any(_size(row) >= RESERVED_MIN for row in rows):
            self.faults.append(f"{doomed.told} was closed without reserved offsets: {closed}")
        return closed

    # -- entries on disks ------------------------------------------------------------------------

    def _metadata(self, ledger: int) -> LedgerMetadata:
        return self.world.ask(lambda session: session.client.read_metadata(LedgerId(ledger)))

    def _open_ledger(self, key: Key) -> int:
        rows = self.operator.ledgers(TOPIC)
        at = place_of(key)[1]
        return max(row["ledger"] for row in rows if row["partition"] == at)

    def _members(self, names: Sequence[str]) -> list[BookieProcess]:
        return [bookie for bookie in self.world.bookies if bookie.id in names]

    def _doomed(self) -> Doomed:
        """Draw entries of a closed ledger that all three bookies of their fragment have."""
        rows = self.operator.ledgers(TOPIC)
        self._draw.shuffle(rows)
        for row in rows:
            if row["state"] != "CLOSED" or row["entries"] < ENTRIES_MIN:
                continue
            metadata = self._metadata(row["ledger"])
            first = self._draw.randrange(row["entries"])
            bookies = self._members(metadata.bookies_of(EntryId(first)))
            if len(bookies) < 3 or self._known_lost(row["ledger"]):
                continue
            fragment = metadata.fragment_of(EntryId(first))
            last = min(first + self._draw.randrange(LOST_MAX), row["entries"] - 1)
            while metadata.fragment_of(EntryId(last)) != fragment:
                last -= 1
            return Doomed(key_of(TOPIC, row["partition"]), row["ledger"], first, last, bookies)
        raise AssertionError(f"no closed ledger has {ENTRIES_MIN} entries on three bookies: {rows}")

    def _known_lost(self, ledger: int) -> bool:
        return any(row["ledger"] == ledger for row in self.accepted)

    def _delete(self, doomed: Doomed, bookies: Sequence[BookieProcess]) -> None:
        """Delete the entries from the disks of these bookies, while they do not run."""
        for bookie in bookies:
            bookie.stop()
        for bookie in bookies:
            forget(bookie.data / "index", doomed.ledger, doomed.first, doomed.last)
        bring_up(*bookies)

    def _wipe(self, bookie: BookieProcess) -> None:
        """Let it come back with an empty disk; the session of its old id has ended then."""
        old = bookie.id
        bookie.kill()
        shutil.rmtree(bookie.data)
        bookie.start()

        self._wait_gone(old)

    def _wait_gone(self, *names: str) -> None:
        """Wait until the sessions of dead bookies have ended."""

        async def registered(session: Session) -> bool:
            return not session.bookies.registered().keys().isdisjoint(names)

        wait_until(
            lambda: not self.world.ask(registered), "sessions to end", START_S_MAX, pause_s=0.5
        )

    def _repair(self) -> None:
        self.world.end_auditors()
        self.world.audit_once()
        self.world.auditor()

    # -- what an operator does about a loss ------------------------------------------------------

    def _check_nothing_lost(self, after: str) -> None:
        rows = self.operator.gaps(TOPIC)
        self.faults += [f"{after}: {row}" for row in rows if row["state"] == "lost"]

    def _accept(self, doomed: Doomed, gone: str = "") -> None:
        """Accept the loss of the doomed entries, and of nothing else."""
        stop = self._read_late(doomed.key)
        rows = [row for row in self.operator.gaps(TOPIC) if row["state"] in ("lost", "waiting")]
        for row in rows:
            first, last = row["entries"]
            if (row["ledger"], first, last) != (doomed.ledger, doomed.first, doomed.last):
                self.faults.append(f"lost besides {_words(doomed)}: {row}")
            if row["state"] != ("waiting" if gone else "lost"):
                self.faults.append(f"{_words(doomed)} is {row['state']}")
        if not rows:
            self.faults.append(f"no gap is shown for {_words(doomed)}")
        self._wait_blocked(doomed, rows)
        for row in rows:
            start_s = self.recorder.now_s()
            if _size(row) == 0:
                found = self.operator.accept_ledger(row["ledger"])["accepted"]
                self._note_accepted(_in_partition(found, row["partition"]), start_s)
            else:
                self.operator.accept(row, (gone,) if gone else ())
                self._note_accepted([row], start_s)
        self._pass(doomed, self._end_of(doomed.key), "readers to pass what was given up")
        stop()
        self._check_nothing_lost(f"acceptance of {_words(doomed)}")

    def _note_accepted(self, rows: Sequence[Row], start_s: float) -> None:
        self.accepted += rows
        for row in rows:
            if _size(row) > 0:
                gap = {self._key_of(row): [("DATALOSS", *row["offsets"], True)]}
                self.recorder.add(OPERATOR, OPERATOR, "gap", OK, start_s, gap)

    def _key_of(self, row: Row) -> Key:
        return key_of(TOPIC, row["partition"])

    # -- readers that begin at the start ---------------------------------------------------------

    def _read_late(self, key: Key) -> Callable[[], None]:
        """Two readers begin at the start of the log. Returns what ends them."""
        self._late += 1
        stop = self._background.run(self.load.read_also([key], f"late-{self._late}"))

        async def end() -> None:
            stop()

        return lambda: self._background.run(end())

    def _shown(self, key: Key) -> dict[str, set[int]]:
        """The offsets that the two late readers were shown."""
        found: dict[str, set[int]] = {f"{kind}-late-{self._late}": set() for kind in "al"}
        for op in self.recorder.ops[:]:
            if op.kind == "poll" and op.process in found:
                found[op.process] |= {offset for offset, _ in op.value.get(key, ())}
        return found

    def _end_of(self, key: Key) -> int:
        """One past the last offset that was acknowledged."""
        return 1 + max(self._acked(key))

    def _acked(self, key: Key) -> list[int]:
        """The acknowledged offsets, without those that were given up."""
        given_up = [row["offsets"] for row in self.accepted if self._key_of(row) == key]
        return [
            offset
            for op in self.recorder.ops[:]
            if op.kind == "send" and op.result == OK
            for at, _, offset in op.value
            if at == key and not any(first <= offset <= last for first, last in given_up)
        ]

    def _wait_blocked(self, doomed: Doomed, rows: Sequence[Row]) -> None:
        """Wait until late readers stand before the loss; none may pass it without its records."""
        ranges = [row["offsets"] for row in rows if _size(row) > 0]
        if not ranges:
            return
        first, last = min(ranges)[0], max(ranges)[1]
        before = max((at for at in self._acked(doomed.key) if at < first), default=-1)

        def there() -> bool:
            shown = self._shown(doomed.key).values()
            return before < 0 or all(max(some, default=-1) >= before for some in shown)

        wait_until(there, "readers to come to a loss", PASS_S_MAX, pause_s=0.1)
        self.rest(1.0)
        for reader, some in self._shown(doomed.key).items():
            if max(some, default=-1) > last and not some >= set(range(first, last + 1)):
                self.faults.append(f"{reader} passed {_words(doomed)} before it was given up")

    def _pass(self, doomed: Doomed, end: int, what: str) -> None:
        def passed() -> bool:
            shown = self._shown(doomed.key).values()
            return all(max(some, default=-1) >= end - 1 for some in shown)

        wait_until(passed, what, PASS_S_MAX, pause_s=0.1)


def _in_partition(rows: Sequence[Row], partition: int) -> list[Row]:
    return [{**row, "partition": partition} for row in rows]


def _size(row: Row) -> int:
    """Return the number of offsets."""
    return row["offsets"][1] - row["offsets"][0] + 1


def bring_up(*servers: ServerProcess) -> None:
    """Start servers that died, all at once."""
    for server in servers:
        server.begin()
    for server in servers:
        server.wait_started()


def _words(doomed: Doomed) -> str:
    return f"entries {doomed.first} to {doomed.last} of ledger {doomed.ledger}, {doomed.key}"


def _reconnect(proxies: Sequence[Proxy]) -> None:
    """Let bytes pass again, on new connections only: those with lost bytes are of no use."""
    for proxy in proxies:
        proxy.heal()
        proxy.cut()
