"""Runs the parts of a bench on both sides, one after the other, with a line of JSON for each part.

A part starts a broker for each side and each of its pairs: `fsync`, where both sides sync every
acknowledged record, and `nosync`, where neither does. If a tool fails or takes too long, the part
ends there on this side, its line names the failure, and all other parts run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.cells import Figures, Run, own_ratios, table, worst_cells, worst_of_parts
from tests.bench.sides import Meter, new_side
from tests.peers.broker import Broker
from tests.peers.install import CACHE
from tests.peers.processes import TookTooLong

SIDES = ("kafka", "gateway")
PAIRS = ("fsync", "nosync")
_FAILURES = (RuntimeError, AssertionError, OSError, TookTooLong)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """One side that has started, and where its figures go."""

    broker: Broker
    side: str
    pair: str
    quick: bool
    megabytes: int  # of a round, 0 for as many as the part writes by itself
    data: Path
    run: Run
    part: str

    def add(self, cell: str, figures: Figures) -> None:
        named = f"{self.part}-{self.pair} {cell}"
        self.run.add(self.side, named, figures)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
        say(f"{self.side} {named}: {shown}")


@dataclass(frozen=True, slots=True)
class Part:
    """A load that can be run alone."""

    measure: Callable[[Stage], None]
    pairs: tuple[str, ...] = PAIRS


@dataclass
class Measured:
    """All runs of one part."""

    runs: list[Run] = field(default_factory=list[Run])
    failed: list[str] = field(default_factory=list[str])
    others: float = 0.0  # the largest share of the CPU that neither side nor tool used


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    parts: list[str]
    pairs: list[str]
    sides: list[str]
    runs: int
    quick: bool
    megabytes: int
    scratch: Path


def _one_side(name: str, part: Part, pair: str, side: str, asked: Asked, found: Measured) -> None:
    data = asked.scratch / f"{side}-{pair}"
    try:
        with new_side(side, pair == "fsync", data) as broker:
            run, megabytes = found.runs[-1], asked.megabytes
            stage = Stage(broker, side, pair, asked.quick, megabytes, data, run, name)
            _on_stage(stage, part, found)
    except _FAILURES as error:
        shown = str(error).splitlines() or [repr(error)]
        say(f"{side} {name}-{pair} failed: {error}")
        found.failed.append(f"{side} {name}-{pair}: {shown[0][:300]}")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _on_stage(stage: Stage, part: Part, found: Measured) -> None:
    meter = Meter(stage.broker)
    try:
        part.measure(stage)
    finally:
        found.others = max(found.others, meter.others_share())


def measure(name: str, part: Part, asked: Asked) -> Measured:
    """Run one part as often as asked, both sides in each run."""
    found = Measured()
    for number in range(asked.runs):
        say(f"{name}: run {number + 1} of {asked.runs}")
        found.runs.append(Run())
        for pair in part.pairs:
            for side in asked.sides if pair in asked.pairs else ():
                _one_side(name, part, pair, side, asked, found)
    return found


def line(bench: str, name: str, found: Measured, asked: Asked) -> dict[str, object]:
    """Return the worst ratios of a part and of its cells, and what failed."""
    cells = worst_cells(found.runs)
    head = {"bench": bench, "part": name, "runs": asked.runs, "quick": asked.quick}
    more = {"own": own_ratios(found.runs), "others_cpu_at_most": round(found.others, 2)}
    return {**head, **worst_of_parts(cells), **more, "failed": found.failed, "cells": cells}


def main(bench: str, doc: str, parts: dict[str, Part], words: Sequence[str] | None = None) -> int:
    """Run the parts that the command line names. Returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    names = ",".join(parts)
    parser.add_argument("--parts", default=names, help=f"parts with commas between them [{names}]")
    parser.add_argument("--pair", choices=PAIRS, help="only this pair [both]")
    parser.add_argument("--runs", type=int, default=3, help="runs, of which the worst counts [3]")
    parser.add_argument("--target", choices=SIDES, help="one side alone [both]")
    parser.add_argument("--quick", action="store_true", help="small rounds, to see that it works")
    parser.add_argument("--megabytes", type=int, default=0, help="of each round [the part's own]")
    given = parser.parse_args(words)
    chosen = given.parts.split(",")
    unknown = sorted(set(chosen) - set(parts))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; the parts are {names}")
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{bench}-", dir=CACHE))
    pairs = [given.pair] if given.pair else list(PAIRS)
    sides = [given.target] if given.target else list(SIDES)
    size = given.megabytes
    asked = Asked(chosen, pairs, sides, given.runs, given.quick, size, scratch)
    failed = False
    try:
        for name in asked.parts:
            found = measure(name, parts[name], asked)
            failed |= bool(found.failed)
            print(table(found.runs))
            print(json.dumps(line(bench, name, found, asked)), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return int(failed)
