"""Every kind of harm by seed, in ever new company, on a cluster that is written and read all along.

    python -m tests.cluster.swarm --seed N --seconds S [--bookies 5]

Spells of a few seconds follow each other; each draws what is harmed now, a quarter of them are
quiet. At the end all is healed, the list of ledgers that lack copies runs empty, and every ledger
is judged, on all of its copies. One line per spell; the last line is JSON. Exit code 1: it lost.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledger.command_line.exit_codes import EXIT_DISK, EXIT_UNREACHABLE
from ledger.errors import LedgerError
from tests.cluster.client import Session
from tests.cluster.world import World, fill, small_disk, wait
from tests.peers.bookie import BookieProcess
from tests.peers.processes import Process
from tests.peers.proxy import TO_CLIENT, TO_SERVER, Proxy

SHAPES = "3,3,2 5,3,2 4,3,2 5,5,3 3,2,2 4,4,2"
ROLES = (f"write {SHAPES}", f"write {SHAPES}", "write", "read", "read")
OPTIONS = ("--gc-interval", "2s", "--disk-free-min", "64MiB", "--rewrite-share", "50")
SPELL_S_MAX = 10.0  # and a third of it at least; less in a short run
QUIET = 0.25  # share of the spells
LASTS = 0.3  # so often a harm outlives its spell
KINDS_MAX = 3  # begun in one spell
DISK_MIB = 1024  # of the one that may be full
DRAIN_S_MAX = 120.0
LEDGERS_KEPT = 10  # the newest are not deleted


@dataclass
class Harm:
    """Something is wrong with `target` until `undo`."""

    kind: str
    target: object
    undo: Callable[[], None]


class Swarm:
    """Chance and what it does to a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.draw = random.Random(f"{seed}:swarm")
        self.began: Counter[str] = Counter()
        self.active: list[Harm] = []
        self.whole = True  # no disk was lost since all copies were made anew
        self.copies: dict[str, Path] = {}  # of directories, by name of the bookie
        self.small = world.bookies[0].data.parent
        self.auditor: Process | None = None
        self.kinds: dict[str, Callable[[], Harm | None]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    # -- spells ----------------------------------------------------------------------------------

    def run(self, seconds: float, say: Callable[[str], None]) -> None:
        """So many seconds of spells."""
        start_s = time.monotonic()
        self.supervise()
        while (now_s := time.monotonic() - start_s) < seconds:
            told = self.turn()
            self.supervise()
            say(f"{now_s:6.1f} s  {self.world.acked_ever():7d} acknowledged  {told}")
            longest_s = min(SPELL_S_MAX, seconds / 4)
            self.rest(self.draw.uniform(longest_s / 3, longest_s))

    def turn(self) -> str:
        """The next spell begins; what is wrong now."""
        self.check_bookies()
        if self.draw.random() < QUIET:
            self.end(self.active)
            return "quiet" if self.whole else self.make_whole()
        self.end([harm for harm in self.active if self.draw.random() > LASTS])
        for kind in self.draw.sample(sorted(self.kinds), self.draw.randint(1, KINDS_MAX)):
            for _ in range(self.draw.choice((1, 1, 1, 2, 2, 3))):
                harm = self.kinds[kind]()
                if harm is not None:
                    self.began[kind] += 1
                    self.active.append(harm)
        return ", ".join(f"{harm.kind} {harm.target}" for harm in self.active) or "nothing"

    def rest(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def end(self, harms: list[Harm]) -> None:
        for harm in list(harms):
            self.active.remove(harm)
            harm.undo()

    def make_whole(self) -> str:
        """No ledger lacks a copy: then one more disk may be lost."""
        self.world.heal()
        self.world.end_clients("write")
        self.world.close_all()
        self.world.audit_once()
        self.whole = True
        return "quiet; writers were killed and all copies made anew"

    def drain(self) -> None:
        """No ledger is on the list of those that lack copies, and none should be."""
        world = self.world
        try:
            wait(lambda: world.under_replicated() == [], "it to run empty", DRAIN_S_MAX)
            world.audit_once()
        except AssertionError as error:
            self.world.complaints.append(f"copies are missing: {error}")
            self.world.complaints += [f"{path}: {note}" for path, note in world.notes().items()]
            for bookie in world.bookies:
                used = shutil.disk_usage(bookie.data)
                self.world.complaints.append(f"{bookie.id}: {used}: {bookie.output()[-1000:]}")
            self.check_auditor()

    def supervise(self) -> None:
        """Whoever was killed starts again; whoever ended otherwise is a fault."""
        world = self.world
        for pair in list(world.clients):
            log, process = pair
            if process.exit_code is None:
                continue
            if process.exit_code != -signal.SIGKILL:
                self.world.complaints.append(f"{log.name} ended: {process.output()[-1500:]}")
            world.retire(pair)
        if self.can_start():
            world.start_clients(*self.missing_roles())
            if self.auditor is None or self.auditor.exit_code is not None:
                self.check_auditor()
                self.auditor = world.auditor()

    def missing_roles(self) -> list[str]:
        living = Counter(log.name.partition("-")[0] for log, _ in self.world.clients)
        missing: list[str] = []
        for role in ROLES:
            living[role.split()[0]] -= 1
            if living[role.split()[0]] < 0:
                missing.append(role)
        return missing

    def check_bookies(self) -> None:
        """Only we end them, or what they cannot start or go on without; they start again."""
        harmed = {harm.target for harm in self.active}
        for bookie in self.world.bookies:
            if bookie.running or bookie.name in harmed:
                continue
            code, said = bookie.process.exit_code, bookie.output()
            if code == EXIT_DISK and bookie is self.world.bookies[0]:
                self.began["ended_by_full_disk"] += 1
            elif code != EXIT_UNREACHABLE or "started" in said:
                self.world.complaints.append(f"{bookie.name} ended with {code}: {said[-1500:]}")
            bookie.begin()

    def can_start(self) -> bool:
        """A client that starts finds ZooKeeper."""
        return not any(harm.kind.startswith("zookeeper") for harm in self.active)

    def check_auditor(self) -> None:
        if self.auditor is not None and self.auditor.exit_code not in (
            -signal.SIGKILL,
            EXIT_UNREACHABLE,
        ):
            self.world.complaints.append(f"the auditor ended: {self.auditor.output()[-1500:]}")

    # -- bookies ---------------------------------------------------------------------------------

    def free_bookie(self) -> BookieProcess | None:
        """One that nothing is wrong with."""
        harmed = {harm.target for harm in self.active}
        free = [b for b in self.world.bookies if b.name not in harmed and b.running]
        return self.draw.choice(free) if free else None

    def do_kill(self) -> Harm | None:
        bookie = self.free_bookie()
        if bookie is None:
            return None
        bookie.kill()
        self.back_up(bookie)
        return Harm("kill", bookie.name, lambda: start(bookie))

    def do_stop(self) -> Harm | None:
        bookie = self.free_bookie()
        if bookie is None:
            return None
        code = bookie.stop()
        early = code == -signal.SIGTERM and not bookie.output()  # it had not begun yet
        if code != 0 and not early:
            self.world.complaints.append(
                f"{bookie.name} stopped with {code}: {bookie.output()[-1500:]}"
            )
        self.back_up(bookie)
        return Harm("stop", bookie.name, lambda: start(bookie))

    def back_up(self, bookie: BookieProcess) -> None:
        """A backup, for later."""
        if bookie.name not in self.copies:
            copy = self.world.directory / f"copy-of-{bookie.name}"
            shutil.copytree(bookie.data, copy)
            self.copies[bookie.name] = copy

    def do_pause(self) -> Harm | None:
        bookie = self.free_bookie()
        if bookie is None:
            return None
        bookie.pause()
        return Harm("pause", bookie.name, bookie.resume)

    def do_wipe(self) -> Harm | None:
        """Its disk is lost; it comes back empty, as another."""
        bookie = self.free_bookie()
        if bookie is None or not self.whole:
            return None
        self.whole = False
        bookie.kill()
        shutil.rmtree(bookie.data)
        self.forget_copy(bookie)
        return Harm("wipe", bookie.name, lambda: start(bookie))

    def do_old_data(self) -> Harm | None:
        """Its disk is put back to what it was."""
        bookie = self.free_bookie()
        if bookie is None or not self.whole or bookie.name not in self.copies:
            return None
        self.whole = False
        bookie.kill()
        shutil.rmtree(bookie.data)
        shutil.copytree(self.copies[bookie.name], bookie.data)
        self.forget_copy(bookie)
        return Harm("old data", bookie.name, lambda: start(bookie))

    def forget_copy(self, bookie: BookieProcess) -> None:
        copy = self.copies.pop(bookie.name, None)
        if copy is not None:
            shutil.rmtree(copy)

    def do_full(self) -> Harm | None:
        """The one small disk is full."""
        bookie = self.world.bookies[0]
        if any(harm.kind == "full" for harm in self.active):
            return None
        ballast = self.small / "ballast"
        fill(ballast)
        return Harm("full", f"disk of {bookie.name}", ballast.unlink)

    # -- links -----------------------------------------------------------------------------------

    def link(self, kind: str, harm: Callable[[Proxy], None]) -> Harm | None:
        bookie = self.free_bookie()
        if bookie is None:
            return None
        proxy = self.world.proxies[self.world.bookies.index(bookie)]
        harm(proxy)
        return Harm(kind, bookie.name, proxy.heal)

    def do_refuse(self) -> Harm | None:
        return self.link("refuse", lambda proxy: proxy.refuse())

    def do_freeze(self) -> Harm | None:
        lanes = self.draw.choice(((), (TO_SERVER,), (TO_CLIENT,)))
        return self.link("freeze", lambda proxy: proxy.freeze(*lanes))

    def do_drop(self) -> Harm | None:
        lanes = self.draw.choice(((), (TO_SERVER,), (TO_CLIENT,)))
        return self.link("drop", lambda proxy: proxy.drop(*lanes))

    def do_slow(self) -> Harm | None:
        latency_s = self.draw.choice((0.01, 0.05, 0.2, 0.5))
        return self.link("slow", lambda proxy: proxy.slow(latency_s=latency_s))

    def do_narrow(self) -> Harm | None:
        bytes_per_s = self.draw.choice((20_000.0, 200_000.0))
        return self.link("narrow", lambda proxy: proxy.slow(bytes_per_s=bytes_per_s))

    def do_flap(self) -> Harm | None:
        """Its connections are cut again and again."""
        over = threading.Event()

        def flap(proxy: Proxy) -> None:
            while not over.wait(0.3):
                proxy.cut()

        def begin(proxy: Proxy) -> None:
            threading.Thread(target=flap, args=(proxy,), daemon=True).start()

        harm = self.link("flap", begin)
        return harm and Harm("flap", harm.target, over.set)

    # -- ZooKeeper -------------------------------------------------------------------------------

    def zookeeper(self, kind: str, harm: Callable[[], None], undo: Callable[[], object]) -> Harm:
        harm()
        return Harm(kind, "", lambda: (undo(), None)[1])

    def zookeeper_is_fine(self) -> bool:
        return not any(harm.kind.startswith("zookeeper") for harm in self.active)

    def do_zookeeper_kill(self) -> Harm | None:
        server = self.world.zookeeper
        if not self.zookeeper_is_fine():
            return None
        return self.zookeeper("zookeeper kill", server.kill, server.start)

    def do_zookeeper_pause(self) -> Harm | None:
        server = self.world.zookeeper
        if not self.zookeeper_is_fine():
            return None
        return self.zookeeper("zookeeper pause", server.pause, server.resume)

    def do_zookeeper_link(self) -> Harm | None:
        """Only clients, or only bookies, do not reach it."""
        role = self.draw.choice(("clients", "bookies"))
        proxy = self.world.to_zookeeper[role]
        if not self.zookeeper_is_fine():
            return None
        harm = self.draw.choice((proxy.freeze, proxy.refuse, proxy.drop))
        return self.zookeeper(f"zookeeper unreached by {role}", harm, proxy.heal)

    # -- clients and the auditor -----------------------------------------------------------------

    def living(self, role: str) -> tuple[str, Process] | None:
        harmed = {harm.target for harm in self.active}
        living = [
            (log.name, process)
            for log, process in self.world.clients
            if log.name.startswith(role) and log.name not in harmed and process.exit_code is None
        ]
        return self.draw.choice(living) if living else None

    def do_client_kill(self) -> Harm | None:
        found = self.living(self.draw.choice(("write", "write", "read")))
        if found is None:
            return None
        found[1].kill()
        return Harm("client kill", found[0], lambda: None)

    def do_client_pause(self) -> Harm | None:
        """A zombie: somebody else may take its ledger over meanwhile."""
        found = self.living(self.draw.choice(("write", "write", "read")))
        if found is None:
            return None
        name, process = found
        process.pause()
        return Harm("client pause", name, process.resume)

    def do_auditor_kill(self) -> Harm | None:
        if self.auditor is None or self.auditor.exit_code is not None:
            return None
        self.auditor.kill()
        return Harm("auditor kill", "", lambda: None)

    def do_takeover(self) -> Harm | None:
        """Somebody recovers a ledger that is being written."""
        if not self.zookeeper_is_fine():
            return None

        async def recover(session: Session) -> int | None:
            for ledger in reversed(await session.client.list_ledgers()):
                metadata = await session.client.read_metadata(ledger)
                if not metadata.closed:
                    await session.client.recover(ledger)
                    return ledger
            return None

        try:
            ledger = self.world.ask(recover)
        except LedgerError:
            return None  # too few bookies answer now
        return ledger and Harm("takeover", f"of ledger {ledger}", lambda: None)

    def do_delete(self) -> Harm | None:
        """Some old ledger goes, and with it its room."""
        if not self.zookeeper_is_fine():
            return None
        try:
            old = self.world.ledgers()[:-LEDGERS_KEPT]
            if not old:
                return None
            ledger = self.draw.choice(old)
            self.world.delete(ledger)
        except LedgerError:
            return None
        return Harm("delete", f"of ledger {ledger}", lambda: None)


def start(bookie: BookieProcess) -> None:
    if not bookie.running:
        bookie.begin()


def run(
    directory: Path, seed: int, seconds: float, bookies: int, say: Callable[[str], None]
) -> dict[str, object]:
    """One run. What is wrong is in `faults` of the result; the directory is left as it is."""
    world = World(directory, bookies, OPTIONS)
    with small_disk(directory / "bookie-0", DISK_MIB), world:
        swarm = Swarm(world, seed)
        begun_s = time.monotonic()
        swarm.run(seconds, say)
        swarm.check_bookies()
        swarm.end(swarm.active)
        world.heal()
        swarm.supervise()
        world.wait_acked(300, "writers to go on")
        say("healed; writers go on")
        world.finish()
        swarm.drain()
        say("the list has run empty")
        faults = world.judge_ever(all_copies=True)
        return {
            "proof": "cluster",
            "seed": seed,
            "seconds": round(time.monotonic() - begun_s),
            "acknowledged": world.told_ever().count(),
            "ledgers": len(world.told_ever().acked),
            "faults": dict(sorted(swarm.began.items())),
            "violations": len(faults),
            "said": faults[:20],
        }


def main() -> int:
    flags = argparse.ArgumentParser(prog="python -m tests.cluster.swarm", description=__doc__)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--seconds", type=float, default=180.0)
    flags.add_argument("--bookies", type=int, default=5)
    asked = flags.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="swarm-"))

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    result = run(directory, asked.seed, asked.seconds, asked.bookies, say)
    if result["violations"]:
        say(f"what there is to see is in {directory}")
    else:
        shutil.rmtree(directory)
    print(json.dumps(result), flush=True)
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
