"""The proof of readers and losses: seeds, small worlds to the end, planted mistakes.

    python -m tests.sim.proof_reading [--seeds 20000] [--first 0] [--jobs 2] [--only PART ...]
                                      [--write]
    python -m tests.sim.proof_reading --replay SEED

Parts are `seeds`, `search` and `mistakes`. `--write` puts what was run into docs/proof.md; what
other parts wrote there stays. The last line is the result as JSON; the exit status tells too.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.sim import loss_mistakes, reading_mistakes, refusal_mistakes
from tests.sim.exhaustive import reading
from tests.sim.exhaustive.search import search
from tests.sim.loop import simulate
from tests.sim.mutations import hunt
from tests.sim.reading_families import Copies
from tests.sim.reading_forced import Forced
from tests.sim.reading_retries import Retried
from tests.sim.reading_world import Lossless, Lossy, LossyTrimmed, Trimmed
from tests.sim.swarm import order_of

MUTATIONS = (
    *reading_mistakes.MUTATIONS,
    *loss_mistakes.MUTATIONS,
    *refusal_mistakes.OF_READERS,
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "proof.md"
HEADING = "## Readers, and entries that are lost"
PARTS = {
    "seeds": "### Seeds of readers",
    "search": "### Small worlds of a reader",
    "mistakes": "### Mistakes of readers",
}
WORLDS = (
    *(Copies, Lossy, Copies, Lossless, Copies, Forced, Copies, Retried, Copies, Trimmed),
    *(Copies, Lossy, Copies, Lossless, Copies, Forced, Copies, LossyTrimmed, Copies, Trimmed),
)
SEEDS_AT_ONCE = 50
TASKS_PER_PROCESS = 100  # then a new one: bounded memory
MUTATION_SEEDS_MAX = 2_000
SHOWN_MAX = 20
SEEDS_TEXT = """\
In `Copies` a reader meets drawn copies of each entry of a closed ledger. In the other worlds
owners write, die and are taken over, bookies crash, lose their disks or come back with old ones,
repair mends, and native readers, followers, scans and the owner read. In `Lossy` copies vanish, rot
and are found again, and an operator accepts what is proved lost. In `Forced` too few bookies are
left for a recovery. [An oracle](../tests/sim/reading_oracle.py) knows every copy."""
SEARCH_TEXT = """\
Every reachable state of one ledger with a writer, a reader and an operator, each once
([reading.py](../tests/sim/exhaustive/reading.py)); then mistakes, which must be reached."""
MISTAKES_TEXT = """\
Mistakes planted into the product, and how many seeds of which world find each
([reading_mistakes.py](../tests/sim/reading_mistakes.py),
[loss_mistakes.py](../tests/sim/loss_mistakes.py)). Those about slow bookies are in the table above.
`Retried` is a partition with idempotent producers."""


class Task(NamedTuple):
    """`kind`: seeds, search, reach or mutation."""

    kind: str
    number: int


class Done(NamedTuple):
    task: Task
    count: int  # seeds or states
    found: tuple  # what was wrong, in words
    seconds: float
    seen: Counter  # paths that the seeds took


def kind_of(seed):
    """Half of the seeds are short: one ledger, and a reader."""
    return WORLDS[seed % len(WORLDS)]


def one_seed(seed, seen=None):
    """What was found wrong, an exception that nobody handled included."""
    world = kind_of(seed)(seed)
    try:
        found = simulate(world.run(), order_of(seed))
    except Exception as error:
        return [f"an exception: {error!r}"]
    if seen is not None and hasattr(world, "oracle"):
        seen.update(world.oracle.seen)
    return found


def work(task):
    """One task in a process of its own."""
    began_s = time.monotonic()
    seen = Counter()
    if task.kind == "seeds":
        count, found = _run_seeds(task.number, seen)
    elif task.kind == "search":
        count, found = _searched(reading.World(reading.WORLDS[task.number]))
    elif task.kind == "reach":
        count, found = _searched(list(reading.MISTAKES.values())[task.number]())
    else:
        result = hunt(MUTATIONS[task.number], MUTATION_SEEDS_MAX)
        count, found = result.seeds, [result.how] if result.how else []
    return Done(task, count, tuple(found), time.monotonic() - began_s, seen)


def _run_seeds(first, seen):
    found = []
    gc.disable()
    for seed in range(first, first + SEEDS_AT_ONCE):
        found += [f"seed {seed}: {what}" for what in one_seed(seed, seen)[:3]]
    gc.enable()
    gc.collect()
    return SEEDS_AT_ONCE, found


def _searched(world):
    found = search(world)
    return found.states, [found.violation] if found.violation else []


class Proof:
    """Collects what is done, and says how far it is."""

    def __init__(self, seeds, parts, first=0):
        self.parts = parts
        self.tasks = []
        if "search" in parts:
            self.tasks += [Task("search", number) for number in range(len(reading.WORLDS))]
            self.tasks += [Task("reach", number) for number in range(len(reading.MISTAKES))]
        if "mistakes" in parts:
            self.tasks += [Task("mutation", number) for number in range(len(MUTATIONS))]
        if "seeds" in parts:
            firsts = range(first, first + seeds, SEEDS_AT_ONCE)
            self.tasks += [Task("seeds", number) for number in firsts]
        self.done = {}
        self.violations = []
        self.seen = Counter()
        self.began_s = time.monotonic()

    def take(self, done):
        self.done[done.task] = done
        self.seen.update(done.seen)
        if done.found and done.task.kind in ("seeds", "search"):
            self.violations += done.found
            if len(self.violations) <= SHOWN_MAX:
                print("\n" + "\n".join(done.found), file=sys.stderr)
        self.show()

    def show(self):
        share = len(self.done) / max(1, len(self.tasks))
        bar = "#" * int(30 * share)
        line = (
            f"\r[{bar:<30}] {len(self.done)} of {len(self.tasks)} tasks, {self.count('seeds')} "
            f"seeds, {len(self.violations)} violations, {time.monotonic() - self.began_s:.0f} s"
        )
        print(line, end="", file=sys.stderr, flush=True)

    def of(self, kind):
        return [done for task, done in sorted(self.done.items()) if task.kind == kind]

    def count(self, kind):
        return sum(done.count for done in self.of(kind))

    def result(self):
        planted = self.of("mutation") + self.of("reach")
        return {
            "proof": "reading",
            "seeds": self.count("seeds"),
            "states": self.count("search"),
            "violations": len(self.violations),
            "mutations": len(planted),
            "caught": sum(bool(done.found) for done in planted),
        }

    # -- the section of docs/proof.md --------------------------------------------------------------

    def section(self, part):
        """The lines of one part, its heading first."""
        body = {"seeds": self._seeds, "search": self._search, "mistakes": self._mistakes}[part]()
        return "\n".join([PARTS[part], "", *body]) + "\n"

    def _seeds(self):
        seeds, minutes = self.count("seeds"), (time.monotonic() - self.began_s) / 60
        rate = seeds / max(1e-9, sum(done.seconds for done in self.of("seeds")))
        wrong = sum(len(done.found) for done in self.of("seeds"))
        lines = [
            f"`make proof-reading SEEDS={seeds}`, {minutes:.0f} minutes on {os.cpu_count()} cores,"
            f" {rate:.0f} seeds per second and core: **{seeds:,} seeds, {wrong} violations.**",
            "",
            SEEDS_TEXT,
            "",
            "| what happened | times |",
            "|---|---|",
        ]
        return [*lines, *(f"| {path} | {times:,} |" for path, times in sorted(self.seen.items()))]

    def _search(self):
        lines = [SEARCH_TEXT, "", "| world | states | violations |", "|---|---|---|"]
        for done in self.of("search"):
            words = reading.say(reading.WORLDS[done.task.number])
            lines.append(f"| {words} | {done.count:,} | {len(done.found)} |")
        lines += ["", "| mistake in the exhaustive search | states | found by |", "|---|---|---|"]
        for done in self.of("reach"):
            name = list(reading.MISTAKES)[done.task.number]
            lines.append(f"| {name} | {done.count:,} | {_how(done)} |")
        return lines

    def _mistakes(self):
        done_all = self.of("mutation")
        caught = sum(bool(done.found) for done in done_all)
        lines = [MISTAKES_TEXT, f"**{caught} of {len(done_all)} are found.**", ""]
        lines += ["| row | mistake | world | seeds | found by |", "|---|---|---|---|---|"]
        for done in done_all:
            one = MUTATIONS[done.task.number]
            world = one.world.__name__
            lines.append(f"| {one.trap} | {one.name} | {world} | {done.count} | {_how(done)} |")
        return lines


def _how(done):
    return done.found[0].partition(":")[0] if done.found else "**not found**"


def written(page, proof):
    """The page with the parts that were run replaced, or appended in order."""
    if HEADING not in page:
        page = page.rstrip() + f"\n\n{HEADING}\n"
    for part in PARTS:
        if part in proof.parts:
            page = _replaced(page, part, proof.section(part))
    return page


def _replaced(page, part, section):
    before, _, after = page.partition(HEADING)
    own, following, rest = after.partition("\n## ")
    head, heading, tail = own.partition(PARTS[part] + "\n")
    if heading:
        _, next_heading, more = tail.partition("\n### ")
        own = head + section + (next_heading + more if next_heading else "")
    else:
        own = own.rstrip() + "\n\n" + section
    return before + HEADING + own + following + rest


def replay(seed):
    found = one_seed(seed)
    print(f"seed {seed}: {kind_of(seed).__name__}", *found, sep="\n")
    return bool(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="begin at this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--write", action="store_true", help="put the result into docs/proof.md")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one only")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        return replay(arguments.replay)
    proof = Proof(arguments.seeds, arguments.only, arguments.first)
    proof.show()
    processes = multiprocessing.get_context("fork")
    with processes.Pool(arguments.jobs, maxtasksperchild=TASKS_PER_PROCESS) as pool:
        for done in pool.imap_unordered(work, proof.tasks):
            proof.take(done)
    print(file=sys.stderr)
    print(*(proof.section(part) for part in proof.parts), sep="\n")
    if proof.violations:
        seed = proof.violations[0].partition(":")[0].removeprefix("seed ")
        print(f"repeat: python -m tests.sim.proof_reading --replay {seed}")
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(), proof))
    result = proof.result()
    print(json.dumps(result, separators=(",", ":")))
    return bool(result["violations"]) or result["caught"] < result["mutations"]


if __name__ == "__main__":
    sys.exit(main())
