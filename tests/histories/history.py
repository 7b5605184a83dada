"""What clients did and were told, as data: one `Op` for each finished call, in a `History`.

A history is judged by `checker.py` and `register.py`, whoever recorded it: real clients, the
simulation, or a file. A partition is named by a key, "topic:partition"; values that were written
are unique in a history, so every one of them can be found again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Key = str
Value = int | str

OK = "ok"  # it happened
FAIL = "fail"  # it did not happen, and never will
INFO = "info"  # nobody knows; it may still happen

FOREVER_S = float("inf")
IDEMPOTENT = "idempotent"  # last word of the client name of a producer that may not double
FINAL = "final"  # first word of the process name of a reader that reads all after the end


class Op(NamedTuple):
    """One call of one process, from `start_s` to `end_s` on one clock.

    `value` is, by kind:

    send       [(key, value, offset or None), ...] in the order in which they were sent
    poll       {key: [(offset, value), ...]} in the order in which they came
    assign     [key, ...]: the consumer reads these, and forgets where it was elsewhere
    subscribe  [topic, ...]: others decide what it reads
    commit     (group, {key: committed})
    fetch      (group, {key: committed or -1}): what OffsetFetch answered
    look       {key: (high watermark, log start, leader epoch)} as the leader says; -1: unsaid
    metadata   (node id, {key: (leader, leader epoch)}) as that node says
    gap        {key: [(kind, first, last, accepted), ...]}: offsets without records and why, by the
               name of a `GapKind`, as a native reader or the command that accepted a loss says

    Calls in a transaction, which has a number (`transactions.py` judges these):

    begin        number
    txn-send     (number, [(key, value, offset or None), ...])
    txn-poll     (number, {key: [(offset, value), ...]}): what it read and copied, or only read
    txn-offsets  (number, group, {key: committed})
    end          (number, "commit" or "abort")

    A commit that does not say ok may have changed each of its keys or none.
    """

    process: str
    client: str
    kind: str
    result: str
    start_s: float
    end_s: float
    value: Any
    rebalanced: tuple[Key, ...] = ()  # keys that came or went meanwhile, or may have

    @property
    def idempotent(self) -> bool:
        return self.client.endswith(IDEMPOTENT)


def key_of(topic: str, partition: int) -> Key:
    return f"{topic}:{partition}"


def place_of(key: Key) -> tuple[str, int]:
    """Topic and partition."""
    topic, _, partition = key.rpartition(":")
    return topic, int(partition)


def save(ops: Iterable[Op], file: Path) -> None:
    """One line for each op; times in microseconds since the first start."""
    ops = list(ops)
    zero_s = min((op.start_s for op in ops), default=0.0)
    lines = [json.dumps(_row(op, zero_s), separators=(",", ":")) for op in ops]
    file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def _row(op: Op, zero_s: float) -> list[Any]:
    end = -1 if op.end_s == FOREVER_S else round((op.end_s - zero_s) * 1e6)
    times = (round((op.start_s - zero_s) * 1e6), end)
    return [op.process, op.client, op.kind, op.result, *times, op.value, op.rebalanced]


def load(file: Path) -> list[Op]:
    """What `save` wrote."""
    return [_op(json.loads(line)) for line in gzip.decompress(file.read_bytes()).splitlines()]


def _op(row: Sequence[Any]) -> Op:
    process, client, kind, result, start, end, value, rebalanced = row
    end_s = FOREVER_S if end < 0 else end / 1e6
    if kind in ("commit", "fetch", "metadata"):
        value = (value[0], value[1])
    return Op(process, client, kind, result, start / 1e6, end_s, value, tuple(rebalanced))
