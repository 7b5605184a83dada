"""The proof of the ledger tier: seeds, the exhaustive search, planted mistakes. See docs/proof.md.

    python -m tests.sim.proof_ledger [--seeds 20000] [--jobs 2] [--search quick] [--write]
    python -m tests.sim.proof_ledger --replay SEED [--trace]

Seeds run in `--jobs` processes. The last line is the result as JSON; the exit status tells too.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.sim import families, mutations
from tests.sim.exhaustive.mistakes import MISTAKES
from tests.sim.exhaustive.search import FULL, QUICK, say, search
from tests.sim.exhaustive.world import World
from tests.sim.swarm import Swarm, run, story

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proof.md"
HEADING = "## The ledger tier as a cluster"
PLANTED = """\
Mistakes planted into the product, and how many seeds of which world find each. One of them is
planted into the simulated disk, as its name says: it shows that the checks notice a sync that did
not happen, whichever layer left it out. Worlds named `Real...` run real bookies; those in
[bookie_families.py](../tests/sim/bookie_families.py) run one bookie alone. T18 and T21 are
mistakes of gateways and groups, planted [there](../tests/sim/test_shared_streams.py); T19 is in
[test_streams.py](../tests/sim/test_streams.py); T20 is about transactions. S2 is a failure that
nobody notices. Mistakes of readers are [below](#mistakes-of-readers)."""
SEARCHED = """\
The exhaustive search runs the product's cores between small hosts, which stand for the client and
the bookies. The mistakes T3, T4, T10, T12 and the last one are planted into the cores. The others
are planted into the hosts. They show that the search reaches the states in which such a mistake
shows, not that the product is free of it: for that, see the rows above with the same traps."""
SEEDS_AT_ONCE = 50
TASKS_PER_PROCESS = 100  # then a new one: bounded memory
MUTATION_SEEDS_MAX = 20_000
SHOWN_MAX = 20


class Task(NamedTuple):
    """`kind`: seeds, search, mistake or mutation."""

    kind: str
    number: int


class Done(NamedTuple):
    task: Task
    count: int  # seeds or states
    found: tuple  # what was wrong, in words
    seconds: float


def kind_of(seed):
    """Three of four seeds draw from everything, the others from one family after another."""
    return Swarm if seed % 4 else families.FAMILIES[seed // 4 % len(families.FAMILIES)]


def work(task):
    """One task in a process of its own."""
    began_s = time.monotonic()
    count, found = {
        "seeds": _run_seeds,
        "search": _search,
        "mistake": _reach_mistake,
        "mutation": _hunt,
    }[task.kind](task.number)
    return Done(task, count, tuple(found), time.monotonic() - began_s)


def _run_seeds(first):
    found = []
    gc.disable()
    for seed in range(first, first + SEEDS_AT_ONCE):
        found += [f"seed {seed}: {what}" for what in one_seed(seed)[:3]]
    gc.enable()
    gc.collect()
    return SEEDS_AT_ONCE, found


def one_seed(seed):
    """What was found wrong, an exception that nobody handled included."""
    try:
        return run(seed, kind_of(seed))
    except Exception as error:
        return [f"an exception: {error!r}"]


def _search(number):
    found = search(World(FULL[number]))
    return found.states, [found.violation] if found.violation else []


def _reach_mistake(number):
    found = search(list(MISTAKES.values())[number].world())
    return found.states, [found.violation] if found.violation else []


def _hunt(number):
    result = mutations.hunt(mutations.MUTATIONS[number], MUTATION_SEEDS_MAX)
    return result.seeds, [result.how] if result.how else []


class Proof:
    """Collects what is done, and says how far it is."""

    def __init__(self, seeds, worlds):
        searches = [Task("search", number) for number in range(len(worlds))]
        searches.sort(key=lambda task: -weight(FULL[task.number]))
        seed_tasks = [Task("seeds", first) for first in range(0, seeds, SEEDS_AT_ONCE)]
        half = len(seed_tasks) // 2
        # The longest one runs beside everything else.
        self.tasks = searches[:1] + seed_tasks[:half] + searches[1:]
        self.tasks += [Task("mutation", number) for number in range(len(mutations.MUTATIONS))]
        self.tasks += [Task("mistake", number) for number in range(len(MISTAKES))]
        self.tasks += seed_tasks[half:]
        self.done = {}
        self.violations = []
        self.began_s = time.monotonic()

    def take(self, done):
        self.done[done.task] = done
        if done.found and done.task.kind in ("seeds", "search"):
            self.violations += done.found
            if len(self.violations) <= SHOWN_MAX:
                print("\n" + "\n".join(done.found), file=sys.stderr)
        self.show()

    def show(self):
        share = len(self.done) / len(self.tasks)
        bar = "#" * int(30 * share)
        seconds = time.monotonic() - self.began_s
        line = (
            f"\r[{bar:<30}] {len(self.done)} of {len(self.tasks)} tasks, {self.seeds} seeds, "
            f"{len(self.violations)} violations, {seconds:.0f} s"
        )
        print(line, end="", file=sys.stderr, flush=True)

    def of(self, kind):
        return [done for task, done in sorted(self.done.items()) if task.kind == kind]

    @property
    def seeds(self):
        return sum(done.count for done in self.of("seeds"))

    def result(self):
        planted = self.of("mutation") + self.of("mistake")
        return {
            "proof": "ledger",
            "seeds": self.seeds,
            "violations": len(self.violations),
            "mutations": len(planted),
            "caught": sum(bool(done.found) for done in planted),
        }

    def page(self):
        """The section of docs/proof.md."""
        result, seconds = self.result(), time.monotonic() - self.began_s
        rate = self.seeds / max(1e-9, sum(done.seconds for done in self.of("seeds")))
        lines = [
            HEADING,
            "",
            f"`make proof-ledger SEEDS={self.seeds}`, {seconds / 60:.0f} minutes on"
            f" {os.cpu_count()} cores, {rate:.0f} seeds per second and core:"
            f" **{self.seeds:,} seeds, {result['violations']} violations;"
            f" {result['caught']} of {result['mutations']} planted mistakes caught.**",
            "",
            "Every reachable state of small worlds of the pure cores, each once:",
            "",
            "| world | states | violations |",
            "|---|---|---|",
        ]
        for done in self.of("search"):
            lines.append(f"| {say(FULL[done.task.number])} | {done.count:,} | {len(done.found)} |")
        lines += [
            "",
            PLANTED,
            "",
            "| trap | mistake | world | seeds | found by |",
            "|---|---|---|---|---|",
        ]
        for done in self.of("mutation"):
            one = mutations.MUTATIONS[done.task.number]
            how = done.found[0].partition(":")[0] if done.found else "**not found**"
            name = one.world.__name__
            lines.append(f"| {one.trap} | {one.name} | {name} | {done.count} | {how} |")
        lines += ["", SEARCHED, ""]
        lines += ["| mistake in the exhaustive search | states | found by |", "|---|---|---|"]
        for done in self.of("mistake"):
            how = done.found[0].partition(":")[0] if done.found else "**not found**"
            lines.append(f"| {list(MISTAKES)[done.task.number]} | {done.count:,} | {how} |")
        return "\n".join(lines) + "\n"


def weight(bounds):
    """Roughly how much there is to search."""
    return bounds.entries * (1 + bounds.recoverers) * (1 + bounds.spares) * bounds.write_quorum


def written(page, section):
    """The page with its section about the ledger tier replaced, or appended."""
    before, heading, after = page.partition(HEADING)
    if not heading:
        return page.rstrip() + "\n\n" + section
    _, next_heading, rest = after.partition("\n## ")
    return before + section + (next_heading + rest if next_heading else "")


def replay(seed, trace):
    kind = kind_of(seed)
    print(f"seed {seed}: {kind.__name__}")
    digest, found = story(seed, kind, print if trace else lambda line: None)
    print(digest, *found, sep="\n")
    return bool(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--search",
        choices=("quick", "full"),
        default="full",
        help="full: also the large worlds, which take a core for many minutes each",
    )
    parser.add_argument("--write", action="store_true", help="put the result into docs/proof.md")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --replay: tell every event")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        return replay(arguments.replay, arguments.trace)
    proof = Proof(arguments.seeds, {"quick": QUICK, "full": FULL}[arguments.search])
    proof.show()  # the first task may take minutes
    processes = multiprocessing.get_context("fork")
    with processes.Pool(arguments.jobs, maxtasksperchild=TASKS_PER_PROCESS) as pool:
        for done in pool.imap_unordered(work, proof.tasks):
            proof.take(done)
    print(file=sys.stderr)
    print(proof.page())
    if proof.violations:
        seed = proof.violations[0].partition(":")[0].removeprefix("seed ")
        print(f"repeat: python -m tests.sim.proof_ledger --replay {seed} --trace")
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(), proof.page()))
    result = proof.result()
    print(json.dumps(result, separators=(",", ":")))
    return bool(result["violations"]) or result["caught"] < result["mutations"]


if __name__ == "__main__":
    sys.exit(main())
