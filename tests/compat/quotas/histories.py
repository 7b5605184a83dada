"""Draws histories of quotas, and records what Apache Kafka's own classes return for them.

    python -m tests.compat.quotas.histories

Each line of `recorded.txt` is a step of a history and, behind a tab, Kafka's answer. The steps are
drawn by a printed seed. `tests/gateway/test_quota_rates.py` replays them without Java.
"""

from __future__ import annotations

import argparse
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.peers import install

RECORDED = Path(__file__).parent / "recorded.txt"
SOURCE = Path(__file__).parent / "QuotaHistories.java"
_HISTORIES, _STEPS = 24, 40
_NAMES = ("alice", "bob", "carol")
_CLIENTS = ("app", "job")
_BEGUN_MS = 1_700_000_000_000
_PAUSES_MS = (0, 1, 7, 250, 999, 1_000, 1_001, 3_333, 10_000, 11_000, 12_500, 60_000)


def rates(drawn: random.Random) -> Iterator[str]:
    """Yield the steps of a rate: recorded and taken back values, with pauses of all lengths."""
    samples, seconds = drawn.choice(((11, 1), (11, 1), (3, 1), (2, 2), (11, 5)))
    bound = drawn.choice((1.0, 50.0, 1024.0, 1e7, 0.3, 123_456.789))
    yield f"rate {samples} {seconds} {bound}"
    now_ms = _BEGUN_MS + drawn.randrange(10_000)
    for _ in range(_STEPS):
        now_ms += drawn.choice(_PAUSES_MS) if drawn.random() < 0.6 else drawn.randrange(700)
        value = round(bound * drawn.choice((0.01, 0.3, 1.0, 2.5, 40.0)) * drawn.random(), 4)
        step = drawn.random()
        if step < 0.1:
            yield f"bound {bound * drawn.choice((0.5, 1.0, 3.0))}"
        elif step < 0.2:
            yield f"note {now_ms} {-value}"
        else:
            yield f"record {now_ms} {value}"


def buckets(drawn: random.Random) -> Iterator[str]:
    """Yield the steps of a bucket: strict and permissive mutations."""
    samples, seconds = drawn.choice(((11, 1), (11, 1), (2, 1), (11, 3)))
    rate = drawn.choice((0.2, 1.0, 5.0, 33.3))
    yield f"bucket {samples} {seconds} {rate}"
    now_ms = _BEGUN_MS + drawn.randrange(10_000)
    for _ in range(_STEPS):
        now_ms += drawn.choice(_PAUSES_MS)
        count = drawn.choice((1, 1, 3, 10, 100))
        if drawn.random() < 0.1:
            yield f"bound {rate * drawn.choice((0.5, 2.0))}"
        yield f"{drawn.choice(('strict', 'permissive'))} {now_ms} {count}.0"


def precedence(drawn: random.Random) -> Iterator[str]:
    """Yield the steps of a table of limits: set, removed and looked up."""
    yield "limits"
    users, clients = ("-", "*", *_NAMES[:2]), ("-", "*", *_CLIENTS)
    for step in range(_STEPS):
        user, client = drawn.choice(users), drawn.choice(clients)
        if (user, client) != ("-", "-"):
            value = "-" if drawn.random() < 0.4 else f"{step + 1}.0"
            yield f"limit {user} {client} {value}"
        for _ in range(2):
            yield f"find {drawn.choice(_NAMES)} {drawn.choice((*_CLIENTS, 'other', 'empty'))}"


def drawn_steps(seed: int) -> list[str]:
    """Return the steps of all histories."""
    drawn = random.Random(seed)
    kinds = (rates, buckets, precedence)
    return [step for at in range(_HISTORIES) for step in kinds[at % len(kinds)](drawn)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=20_261_130)
    seed = parser.parse_args().seed
    steps = drawn_steps(seed)
    jars = sorted(install.kafka_jars().glob("*.jar"))
    argv = [install.java(), "-cp", install.compiled(SOURCE, jars), "QuotaHistories"]
    done = subprocess.run(
        argv, input="\n".join(steps) + "\n", capture_output=True, text=True, check=True, timeout=300
    )
    answers = done.stdout.split("\n")[: len(steps)]
    assert len(answers) == len(steps), done.stderr[-2000:]
    lines = [f"{step}\t{answer}\n" for step, answer in zip(steps, answers, strict=True)]
    RECORDED.write_text("".join(lines))
    print(f"seed {seed}: {len(steps)} steps")


if __name__ == "__main__":
    main()
