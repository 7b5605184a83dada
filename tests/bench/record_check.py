"""How many microseconds the check of a produced batch costs, in several ways.

`python -m tests.bench.record_check` prints, for each kind of batch: the header and checksum alone;
`check_now`, which the gateway uses; aiokafka's reader with the checks that it needs; the strict
reader in Python; and the seconds of processor time that `check_now` adds to a gigabyte. Read the
figures as ratios.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from gateway.wire.batches import HEADER_BYTES, check_batch, read_header
from gateway.wire.record_check import RecordRules, check_now
from gateway.wire.record_walk import RecordWalk, heads
from tests.batches import built_batch, raw_batch, record

RULES = RecordRules(16 << 20, keyed=False, timestamps=(0, 1 << 60))
BATCH_BYTES = 16 * 1024


def batch_of(sizes, *, key=None, step=lambda at: at // 50):
    """Return a batch of about 16 KiB with values of these sizes, one after another."""
    records, total = [], 0
    for at, size in enumerate(sizes):
        records.append(record(at, step(at), key, random.randbytes(size)))
        total += len(records[-1])
        if total + size > BATCH_BYTES:
            break
    body = b"".join(records)
    top = max(step(at) for at in range(len(records)))
    return raw_batch(body, len(records), max_timestamp=1000 + top)


def repeated(size: int, times: int = 100_000) -> Iterator[int]:
    return iter([size] * times)


def kinds():
    draw = random.Random(1)
    return {
        "100 B, equal": batch_of(repeated(100)),
        "100 B, equal, keys": batch_of(repeated(100), key=b"key-0001"),
        "100 B, equal, 3 ms apart": batch_of(repeated(100), step=lambda at: 3 * at),
        "50 to 150 B": batch_of(draw.randint(50, 150) for _ in iter(int, 1)),
        "500 to 1,500 B": batch_of(draw.randint(500, 1500) for _ in iter(int, 1)),
        "1 KiB, equal": batch_of(repeated(1024)),
        "one of 100 B": raw_batch(record(0, 0, None, bytes(100))),
        "lz4, 100 B": built_batch([1000] * 150, codec=3, size=100),
        "zstd, 100 B": built_batch([1000] * 150, codec=4, size=100),
    }


def natively(batch, header):
    walk = RecordWalk(batch, HEADER_BYTES, header.records)
    for _ in walk._rest():
        pass


def strictly(batch, header):
    for _ in heads(batch, HEADER_BYTES, 0, header.records):
        pass


def cost_us(work, *args) -> float:
    """Best of seven rounds, in microseconds of processor time."""
    best, times = float("inf"), 300
    for _ in range(7):
        started = time.process_time()
        for _ in range(times):
            work(*args)
        best = min(best, (time.process_time() - started) / times)
    return best * 1e6


def main() -> None:
    print(
        f"{'batch':26}{'records':>8}{'header':>8}{'check':>8}{'aiokafka':>9}{'strict':>8}{'s/GB':>7}"
    )
    for name, batch in kinds().items():
        header = read_header(batch)
        plain = not header.attributes
        columns = [
            cost_us(check_batch, memoryview(batch), 13, 1 << 24),
            cost_us(check_now, batch, header, RULES),
            cost_us(natively, batch, header) if plain else 0.0,
            cost_us(strictly, batch, header) if plain else 0.0,
        ]
        texts = "".join(f"{value:8.1f}" for value in columns)
        print(f"{name:26}{header.records:8}{texts}{columns[1] * 1e3 / len(batch):8.2f}")


if __name__ == "__main__":
    main()
