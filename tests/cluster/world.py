"""ZooKeeper, bookies on racks of their own, auditors, writers and readers: all processes here.

Clients reach each bookie through a proxy of its own (127.0.0.11, .12, ... on the bookie's port),
and so do bookies and clients reach ZooKeeper; proxies cut, drop and slow when told to. All is ended
by process id. What clients and bookies of one world did before `begin` is not judged again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import NoNode, NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.registry.underreplication_format import ledger_of_node
from ledger.repair.plan import wanted_quorum
from tests.cluster.client import Session
from tests.cluster.history import PATIENCE_S, Judge, Log, Told, judge_readers, retried, told
from tests.peers import install
from tests.peers.bookie import SESSION, BookieProcess
from tests.peers.processes import Lifecycle, Process, free_port, wait_until
from tests.peers.proxy import Proxy
from tests.peers.zookeeper import Ensemble, ZooKeeper
from tests.repair.test_processes import unregister

T = TypeVar("T")
AUDIT = ("--delay", "1s", "--grace", "2s", "--interval", "2s", "--session", "2s")
ONCE = ("--once", "--delay", "0", "--grace", "0", "--session", "20s")  # nothing waits for its end
AUDITS_MAX = 3
JUDGE_S_MAX = 180.0
ASK_SESSION_MS = 20_000  # nobody waits for its end
LOOK_S = 0.1
MORE = 300  # acknowledged entries: a few groups of each writer


class World(Lifecycle):
    """One cluster in `directory`. `options` are further words for every bookie.

    ZooKeeper does not sync its log: on a busy disk a sync outlasts sessions, and kill -9 loses
    nothing that was only written.

    Without `proxied` clients reach bookies themselves, and `proxies` is empty. With `ensemble`,
    ZooKeeper is three servers, and bookies reach each of them. `session` is that of each bookie.
    """

    def __init__(
        self,
        directory: Path,
        bookies: int = 5,
        options: tuple[str, ...] = (),
        *,
        proxied: bool = True,
        ensemble: bool = False,
        session: str = SESSION,
    ) -> None:
        self.directory = directory
        self.session = session
        self.ensemble = Ensemble(directory / "ensemble") if ensemble else None
        members = self.ensemble.members if self.ensemble else []
        self.zookeeper = members[0] if members else ZooKeeper(directory / "zookeeper")
        self.to_zookeeper = {
            role: Proxy(self.zookeeper.port, listen_port=free_port())
            for role in ("clients", "bookies")
        }
        self.bookies: list[BookieProcess] = []
        self.proxies: list[Proxy] = []
        for number in range(bookies):
            host = f"127.0.0.{11 + number}"
            shown_as = ("--advertised-host", host) if proxied else ()
            bookie = self._bookie(number, (*shown_as, *options))
            self.bookies.append(bookie)
            if proxied:
                self.proxies.append(Proxy(bookie.port, host=host, listen_port=bookie.port))
        self.clients: list[tuple[Path, Process]] = []
        self.auditors: list[Process] = []
        self.complaints: list[str] = []  # what went wrong otherwise; the judge says it too
        self.judged = 0  # ledgers below it were judged by `begin`
        self._started = 0
        self._logs: list[Path] = []
        self._own_log = directory / "world.log"
        self._counts: dict[Path, tuple[int, int]] = {}  # bytes looked at, acknowledgements in them

    def _bookie(self, number: int, options: tuple[str, ...]) -> BookieProcess:
        return BookieProcess(
            self.directory / f"bookie-{number}" / "data",
            self.ensemble.servers if self.ensemble else self.to_zookeeper["bookies"].address,
            options,
            name=f"bookie-{number}",
            rack=f"/rack-{number}",
            session=self.session,
        )

    def start(self) -> Self:
        try:
            (self.ensemble or self.zookeeper).start()
            for proxy in self.to_zookeeper.values():
                proxy.start()
            for proxy in self.proxies:
                proxy.start()
            for bookie in self.bookies:
                bookie.data.parent.mkdir(parents=True, exist_ok=True)
                bookie.begin()
            for bookie in self.bookies:
                bookie.wait_started()
        except BaseException:
            self.stop()
            raise
        return self

    # -- clients and auditors --------------------------------------------------------------------

    def start_clients(self, *roles: str) -> list[Process]:
        """New processes: `write`, `write 5,3,2 4,3,2` (shapes in turn), `read`."""
        started: list[Process] = []
        for role in roles:
            name, *words = role.split()
            log = self.directory / f"{name}-{self._started}.log"
            self._started += 1
            words = [str(self.judged)] if name == "read" else words
            place = [name, self.to_zookeeper["clients"].address, str(log), *words]
            argv = [sys.executable, "-m", "tests.cluster.client", *place]
            started.append(Process(argv, log.with_suffix(".out")))
            self.clients.append((log, started[-1]))
            self._logs.append(log)
        for process in started:
            process.wait_output("started", 60.0)
        return started

    def retire(self, client: tuple[Path, Process]) -> None:
        """It has ended; what it was told stays told."""
        self.clients.remove(client)

    def begin(self) -> None:
        """Two writers and a reader work; ledgers and logs before them are done with."""
        self.clients.clear()
        self.complaints.clear()
        self.judged = max(self.ledgers(), default=-1) + 1
        self.start_clients("write", "write", "read")

    def auditor(self, *words: str) -> Process:
        """A process that finds and mends what has too few copies."""
        self._started += 1
        log = self.directory / f"audit-{self._started}.log"
        place = ("--zookeeper", self.zookeeper.servers)
        argv = [install.gateway_python(), "-m", "ledger", "audit", *place, *AUDIT, *words]
        self.auditors.append(Process(argv, log))
        return self.auditors[-1]

    def delete(self, *ledgers: int) -> dict[int, int]:
        """As their owner would; where each of them ended."""
        log = Log(self._own_log)

        async def delete(session: Session) -> dict[int, int]:
            ended: dict[int, int] = {}
            for ledger in map(LedgerId, ledgers):
                log.write(f"X {ledger}")
                found = await retried(lambda ledger=ledger: session.client.recover(ledger))
                last = found.metadata.last_entry
                assert last is not None
                ended[ledger] = last
                with contextlib.suppress(NoSuchLedger):  # an attempt before did it
                    await retried(lambda ledger=ledger: session.client.delete(ledger))
            return ended

        return self.ask(delete)

    def audited(self) -> Process:
        """An audit of every ledger that has ended; another one if it lost ZooKeeper.

        Every bookie that runs is registered before it: one that stood still may have lost its
        session, and counts as lost until it has another.
        """
        running = {BookieId(bookie.id) for bookie in self.bookies if bookie.running}
        wait(lambda: running <= self.registered(), "every bookie that runs to be registered")
        for _ in range(AUDITS_MAX):
            auditor = self.auditor(*ONCE)
            if auditor.wait_exit(90.0) != os.EX_UNAVAILABLE:
                return auditor
        raise AssertionError(f"no audit kept ZooKeeper: {self.auditors[-1].output()[-3000:]}")

    def audit_once(self) -> None:
        """Every ledger was looked at, and all that lacked a copy has it."""
        auditor = self.audited()
        assert auditor.exit_code == 0, auditor.output()[-3000:]

    def told(self, role: str = "") -> Told:
        """What the clients of a role were told so far."""
        logs = [log for log, _ in self.clients if log.name.startswith(role)]
        return told(self._own_log, *logs)

    def all_gave_up(self) -> bool:
        """Return whether each writer has given a ledger up, whatever the others did."""
        writers = [log for log, _ in self.clients if log.name.startswith("write")]
        assert writers
        return all(told(log).given_up for log in writers)

    def told_ever(self) -> Told:
        """What all clients there ever were, were told."""
        return told(self._own_log, *self._logs)

    def wait_acked(self, more: int, what: str, timeout_s: float = 60.0) -> None:
        """So many more entries were acknowledged."""
        wanted = self.acked() + more
        wait_until(lambda: self._count_or_raise() >= wanted, what, timeout_s)

    def acked(self) -> int:
        """Entries that were acknowledged since `begin`; cheap, proxies share our processor."""
        writers = [log for log, _ in self.clients if log.name.startswith("write")]
        return sum(map(self._count, writers))

    def acked_ever(self) -> int:
        """Entries that were acknowledged since the start."""
        return sum(map(self._count, self._logs))

    def _count(self, log: Path) -> int:
        seen, count = self._counts.get(log, (0, 0))
        if log.exists() and log.stat().st_size > seen:
            with log.open("rb") as file:
                file.seek(seen)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            count += (b"\n" + whole).count(b"\nA ")
            self._counts[log] = (seen + len(whole), count)
        return count

    def _count_or_raise(self) -> int:
        for log, process in self.clients:
            if process.exit_code not in (None, -signal.SIGKILL):
                raise AssertionError(f"{log.name} ended:\n{process.output()[-3000:]}")
        return self.acked()

    def end_clients(self, role: str = "") -> None:
        """Kill -9 of all of them; what they were told is in their logs."""
        for log, process in self.clients:
            if log.name.startswith(role):
                process.kill()

    @property
    def writers(self) -> list[Process]:
        return [process for log, process in self.clients if log.name.startswith("write")]

    def writers_stand_still(self, holds: Callable[[], bool]) -> bool:
        """Pause the writers. Return True if `holds` does then; otherwise let them go on."""
        for process in self.writers:
            process.pause()
        if holds():
            return True
        for process in self.writers:
            process.resume()
        return False

    def end_auditors(self) -> None:
        for auditor in self.auditors:
            auditor.kill()
        self.auditors.clear()

    def lose(self, bookie: BookieProcess) -> None:
        """Kill -9, and then the end of its session."""
        bookie.kill()
        with contextlib.suppress(NoNode):  # the session has ended already
            asyncio.run(unregister(self.zookeeper.servers, bookie.id))

    # -- the end of harm -------------------------------------------------------------------------

    def heal(self) -> None:
        """Every connection works and every process runs."""
        for proxy in (*self.proxies, *self.to_zookeeper.values()):
            proxy.heal()
        if self.zookeeper.running:
            self.zookeeper.resume()
        else:
            self.zookeeper.start()
        for bookie in self.bookies:
            if bookie.running:
                bookie.resume()
            else:
                bookie.begin()
        for bookie in self.bookies:
            bookie.wait_started()
        for _, process in (*self.clients, *((None, one) for one in self.auditors)):
            process.resume()

    def keeps_all(self, *, all_copies: bool = False) -> Told:
        """Clients go on after all is healed; then nothing is missing. What they were told."""
        self.heal()
        self.wait_acked(MORE, "writers to go on")
        self.finish()
        assert self.judge(all_copies=all_copies) == []
        return self.told()

    def finish(self) -> None:
        """Writers are dead, all ledgers are closed, readers have been shown all of them."""
        self.end_clients("write")
        self.close_all()
        try:
            wait(self._all_shown, "readers to be shown everything", 60.0)
        except AssertionError as error:
            self.complaints.append(str(error))
        self.end_clients()

    def _all_shown(self) -> bool:
        self._count_or_raise()
        facts = self.told()
        readers = [
            log.name
            for log, process in self.clients
            if log.name.startswith("read") and process.exit_code is None
        ]
        return all(
            len(facts.shown.get((reader, ledger), ())) >= len(entries)
            for reader in readers
            for ledger, entries in facts.acked.items()
            if ledger >= self.judged and ledger not in facts.deleted
        )

    def judge(self, *, all_copies: bool = False, patience_s: float = PATIENCE_S) -> list[str]:
        """What is wrong with what the cluster kept since `begin`; writers must have ended."""
        among = {ledger for ledger in self.ledgers() if ledger >= self.judged}
        among |= set(self.told("write").acked)
        return self._judge(self.told(), all_copies, among, patience_s)

    def judge_ever(self, below: int | None = None, *, all_copies: bool = False) -> list[str]:
        """The same of everything there ever was, or of the ledgers below this one."""
        facts = self.told_ever()
        there = {*self.ledgers(), *facts.acked}
        among = {ledger for ledger in there if below is None or ledger < below}
        return self._judge(facts, all_copies, among)

    def _judge(
        self,
        facts: Told,
        all_copies: bool,
        among: set[int],
        patience_s: float = PATIENCE_S,
    ) -> list[str]:
        async def judge(session: Session) -> list[str]:
            async with asyncio.timeout(JUDGE_S_MAX):
                court = Judge(session.client, session.bookies, patience_s)
                return await court.judge(facts, all_copies=all_copies, among=among)

        return self.complaints + self.ask(judge) + judge_readers(facts)

    # -- questions -------------------------------------------------------------------------------

    def ask(self, question: Callable[[Session], Awaitable[T]]) -> T:
        """The answer of a client of this cluster."""

        async def answer() -> T:
            async with Session(self.zookeeper.servers, ASK_SESSION_MS) as session:
                return await question(session)

        return asyncio.run(answer())

    def ledgers(self) -> list[int]:
        return self.ask(lambda session: session.client.list_ledgers())

    def metadata(self) -> list[LedgerMetadata]:
        """Of all ledgers."""

        async def read(session: Session) -> list[LedgerMetadata]:
            ledgers = await session.client.list_ledgers()
            return await asyncio.gather(*map(session.client.read_metadata, ledgers))

        return self.ask(read)

    def members(self) -> set[str]:
        """Every bookie that the metadata of some ledger name."""
        return {
            bookie
            for metadata in self.metadata()
            for fragment in metadata.fragments
            for bookie in fragment.ensemble
        }

    def written_to(self) -> set[str]:
        """Every bookie that an open ledger's entries go to now."""
        return {
            bookie
            for metadata in self.metadata()
            if not metadata.closed
            for bookie in metadata.last_fragment.ensemble
        }

    def registered(self) -> set[BookieId]:
        """Return the bookies that are registered."""

        async def read(session: Session) -> set[BookieId]:
            return set(session.bookies.registered())

        return self.ask(read)

    def narrow(self) -> list[int]:
        """Ledgers on fewer bookies than was wanted when they were made."""

        def is_narrow(metadata: LedgerMetadata) -> bool:
            wanted = wanted_quorum(metadata)
            return wanted is not None and wanted.write_quorum > metadata.write_quorum

        return [metadata.ledger for metadata in self.metadata() if is_narrow(metadata)]

    def close_all(self) -> None:
        """Every ledger is closed: those that nobody writes any more are recovered."""

        async def close(session: Session) -> None:
            for ledger in await session.client.list_ledgers():
                if ledger >= self.judged:
                    await retried(lambda ledger=ledger: session.client.recover(ledger))

        self.ask(close)

    def under_replicated(self) -> list[int]:
        """Ledgers on the list of those that lack copies."""

        async def read(session: Session) -> list[int]:
            paths = await session.metadata.paths("/ledgers/underreplication/ledgers")
            return [ledger for path in paths if (ledger := ledger_of_node(path)) is not None]

        return self.ask(read)

    def notes(self) -> dict[str, str]:
        """Why ledgers lack copies, as far as somebody tried, and who is registered."""

        async def read(session: Session) -> dict[str, str]:
            place = "/ledgers/underreplication/notes"
            found = {
                path: (await session.metadata.get(path)).data.decode()
                for path in await session.metadata.paths(place)
            }
            return found | {"registered": str(session.bookies.registered())}

        return self.ask(read)

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing of it runs any more."""
        for _, process in self.clients:
            process.kill()
        self.end_auditors()
        for bookie in self.bookies:
            if bookie.running:
                bookie.kill()
        for proxy in (*self.proxies, *self.to_zookeeper.values()):
            if proxy.running:
                proxy.stop()
        if self.zookeeper.running:
            self.zookeeper.kill()


def wait(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """As `wait_until`, for what is dear to look at: a session, or a parse of all logs."""
    wait_until(condition, what, timeout_s, pause_s=LOOK_S)


@contextlib.contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[None]:
    """`place` is a disk of its own, in memory."""
    place.mkdir()
    words = ["-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs"]
    subprocess.run(["mount", *words, str(place)], check=True, timeout=10)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)


def fill(ballast: Path) -> None:
    """Its disk has no room left."""
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(1024 * 1024))
            except OSError:
                break
