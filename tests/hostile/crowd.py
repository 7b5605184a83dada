"""A randomised hostile client beside an honest producer and consumer, on one real gateway.

    make proof-hostile MINUTES=10
    python -m tests.hostile.crowd --minutes 1 --seed 7

Hostile connections draw requests of every served API and version: random fields, names of real
topics and groups, damaged bytes, false sizes, disconnects, and replies that nobody reads. They may
read everything, but they change only topics and groups of their own. Afterwards every acknowledged
record must have been consumed once and in order, the log must have no error, and the memory must be
within its setting.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from gateway.config import ConnectionLimits
from gateway.handlers.table import rows
from gateway.wire.messages import encode_request
from gateway.wire.schema import FieldShape, request_class, shape_of
from tests.peers.gateway import Gateway
from tests.peers.processes import status_bytes

HONEST, OWN = "honest", ("own-a", "own-b", "own-c")
READING = frozenset({1, 2, 3, 9, 10, 15, 16, 18, 32, 60, 75})
"""APIs that change nothing. Others never name the honest topic or group."""

CONNECTIONS = 12
IDLE_MB = 64
ANSWER_S_MAX = 20.0
_NUMBERS = (0, 1, -1, 2, 7, 100, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_LARGEST = {"int8": 7, "int16": 15, "int32": 31, "timedelta_i32": 31}


class Draw:
    """Draws bodies by the schema of a request."""

    def __init__(self, random: Random, key: int) -> None:
        self._random = random
        self._names = [*OWN, "", "nosuch", "x" * 300, "a b\0", "__consumer_offsets"]
        if key in READING:
            self._names += [HONEST] * 4

    def body(self, entity: type[Any]) -> dict[str, Any]:
        shape = shape_of(entity)
        return {field.name: self._field(field) for field in shape.fields}

    def _field(self, field: FieldShape) -> Any:
        random = self._random
        if field.nullable and random.random() < 0.1:
            return None
        if field.array:
            count = random.choice([0, 1, 1, 2, 3, 40])
            return [self._value(field) for _ in range(count)]
        return self._value(field)

    def _value(self, field: FieldShape) -> Any:
        random = self._random
        if field.struct is not None:
            return self.body(field.struct)
        match field.kind:
            case "string":
                return random.choice(self._names)
            case "bytes" | "records":
                return random.randbytes(random.choice([0, 1, 61, 300, 20_000]))
            case "uuid":
                return random.randbytes(16)
            case "bool":
                return random.random() < 0.5
            case "float64":
                return random.choice([0.0, -1.0, 1e300])
            case kind:
                return self._number(kind)

    def _number(self, kind: str) -> int:
        bits = _LARGEST.get(kind, 15 if kind == "error_code" else 63)
        low, high = (
            (0, 1 << 30) if kind.startswith("timedelta") else (-(1 << bits), (1 << bits) - 1)
        )
        return min(max(self._random.choice(_NUMBERS), low), high)


class Hostile:
    """One hostile connection after another."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = Random(seed)
        self._served = list(rows().values())
        self.done: Counter[str] = Counter()

    async def run_until(self, ends_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < ends_s:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._connection()

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        reads = self._random.random() < 0.8
        try:
            for _ in range(self._random.randrange(1, 60)):
                writer.write(self._frame())
                if reads:
                    await self._answer(reader)
                else:
                    await self._leave_unread(writer)
        finally:
            writer.close()

    async def _leave_unread(self, writer: asyncio.StreamWriter) -> None:
        self.done["unread"] += 1
        async with asyncio.timeout(1.0):
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        """Read the answer, or give up soon and disconnect."""
        async with asyncio.timeout(self._random.choice([0.01, 1.0, ANSWER_S_MAX])):
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            self.done["answered"] += 1

    def _frame(self) -> bytes:
        random = self._random
        api = random.choice(self._served)
        version = random.choice(api.versions)
        self.done[api.name] += 1
        body = Draw(random, api.key).body(request_class(api.key, version))
        if api.key == 0:
            body["acks"] = random.choice([0, 1, -1])
        frame = encode_request(api.key, version, random.randrange(1 << 31), "hostile", body)
        if random.random() < 0.2:
            frame = self._damaged(frame)
        size = len(frame)
        if random.random() < 0.02:
            size = random.choice([0, 3, -1, size + 100, 90 << 20, 2**31 - 1])
        return size.to_bytes(4, "big", signed=True) + frame

    def _damaged(self, frame: bytes) -> bytes:
        """Overwrite or cut bytes after the header, so that the API stays the drawn one."""
        random = self._random
        damaged = bytearray(frame)
        for _ in range(random.randrange(1, 4)):
            if len(damaged) > 20:
                damaged[random.randrange(15, len(damaged))] = random.choice([0, 1, 127, 128, 255])
        self.done["damaged"] += 1
        return bytes(damaged[: random.choice([len(damaged), random.randrange(11, len(damaged))])])


class Honest:
    """A producer that counts, and a consumer that checks the order."""

    def __init__(self, servers: str, security: Mapping[str, str] | None = None) -> None:
        """Create it. `security` are the keys of librdkafka by which it logs in."""
        self._client = {"bootstrap.servers": servers, "log_level": 0, **(security or {})}
        self._stopping = threading.Event()
        self.acknowledged = 0
        self.read = 0
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._produce),
            threading.Thread(target=self._read),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the producer, then wait until the consumer has read everything."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({**self._client, "enable.idempotence": True})

        def on_delivery(error: object, _: object) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.wrong.append(f"not delivered: {error}")

        sent = 0
        while not self._stopping.is_set():
            producer.produce(HONEST, b"%d" % sent, partition=0, on_delivery=on_delivery)
            sent += 1
            producer.poll(0.01)
        if producer.flush(60.0):
            self.wrong.append("records were neither delivered nor refused")

    def _read(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._client, "group.id": HONEST})
        consumer.assign([TopicPartition(HONEST, 0, 0)])
        idle_since = time.monotonic()
        while not (self._threads[0].is_alive() is False and self.read >= self.acknowledged):
            message = consumer.poll(0.5)
            if message is None:
                if time.monotonic() - idle_since > 60.0:
                    self.wrong.append(f"read {self.read} of {self.acknowledged}")
                    break
                continue
            idle_since = time.monotonic()
            if message.error() is not None or message.value() != b"%d" % self.read:
                self.wrong.append(f"{message.value()!r} in place of {self.read}: {message.error()}")
                break
            self.read += 1
        consumer.close()


def prepare(servers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    wanted = [NewTopic(name, 3, 1) for name in (HONEST, *OWN)]
    for created in admin.create_topics(wanted).values():
        created.result(30.0)


async def _attack(port: int, seed: int, seconds: float) -> Counter[str]:
    ends_s = asyncio.get_running_loop().time() + seconds
    crowd = [Hostile(port, seed + at) for at in range(CONNECTIONS)]
    await asyncio.gather(*(each.run_until(ends_s) for each in crowd))
    return sum((each.done for each in crowd), Counter())


def run(minutes: float, seed: int, data: Path) -> dict[str, Any]:
    """Attack a gateway; return what was seen, with a list of what is wrong."""
    with Gateway(data / "gateway") as gateway:
        prepare(gateway.bootstrap)
        honest = Honest(gateway.bootstrap)
        honest.start()
        try:
            done = asyncio.run(_attack(gateway.port, seed, 60 * minutes))
        finally:
            honest.stop()
        largest_mb = status_bytes(gateway.process.pid, "VmHWM") / (1 << 20)
        log = gateway.process.output()
    bound_mb = ConnectionLimits().memory_bytes_max / (1 << 20) + IDLE_MB
    wrong = [*honest.wrong, *errors_in(log)]
    if largest_mb > bound_mb:
        wrong.append(f"{largest_mb:.0f} MiB of memory, at most {bound_mb:.0f}")
    print(dict(sorted(done.items())), file=sys.stderr)
    return {
        "proof": "hostile",
        "seed": seed,
        "requests": done["answered"] + done["unread"],
        "acknowledged": honest.acknowledged,
        "read": honest.read,
        "largest_mb": round(largest_mb),
        "wrong": wrong[:20],
    }


def errors_in(log: str) -> list[str]:
    """Return the lines that report a defect."""
    bad = re.compile(
        r"Traceback|\berror\b.*(handler failed|connection failed|unexpected)|our fault"
    )
    return [f"{line[:160]} ... {line[-400:]}" for line in log.splitlines() if bad.search(line)]


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--minutes", type=float, default=10.0)
    words.add_argument("--seed", type=int, default=None)
    asked = words.parse_args()
    seed = secrets.randbits(30) if asked.seed is None else asked.seed
    print(f"seed {seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hostile-") as data:
        seen = run(asked.minutes, seed, Path(data))
    print(json.dumps(seen))
    return 1 if seen["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
