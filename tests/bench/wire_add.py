"""CPU of an add between a client and a bookie: our frames over TCP beside gRPC, in one run.

    python -m tests.bench.wire_add [--runs 3] [--seconds 2] [--profile tcp]
    python -m tests.bench.wire_add --mixed

The bookie is the stub of `grpc_add`, which answers at once, so that only the network is compared.
Client and bookie are processes of their own; the CPU is that of both, with all their threads. The
sides take turns. The last line is JSON: for each load the worst ratio of the runs, TCP / gRPC.
`--mixed` measures the latency of lone adds beside reads of 1 MiB, with one connection for both,
with one for each, and over gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from tests.bench.bookie_add import KEY, entry_of
from tests.bench.grpc_add import (
    Load,
    StubBookie,
    client_of,
    cpu_s,
    run,
    serve_until_stdin_ends,
    server_of,
)

SIDES = ("tcp", "grpc")
LOADS = ((1024, 1), (16 * 1024, 1), (1024, 64), (16 * 1024, 64), (128 * 1024, 1), (128 * 1024, 64))
NAMES = {1: "alone", 64: "in_flight_64"}
WARM_ADDS = 500


async def serve(side: str) -> None:
    """A stub bookie until stdin ends; prints its port."""
    await serve_until_stdin_ends(server_of(ReadingBookie(), side))


class ReadingBookie(StubBookie):
    """Also answers reads of many entries, with a mebibyte of 16 KiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = [os.urandom(16 * 1024) for _ in range(64)]

    async def read_many(self, ledger, first, last, max_bytes, room=None, *, from_disk=False):
        return ReadManyReply(Status.OK, self.bodies)

    async def read_lac(self, ledger):
        return ReadReply(Status.OK)


async def mixed(side: str, port: int, bookie_pid: int, seconds: float) -> None:
    """Print the latency of lone adds in us, p50 and p99, MB/s read, and CPU per MB of both ends."""
    name = StubBookie.bookie_id
    writer = client_of({StubBookie.bookie_id: port}, side)
    reader = client_of({StubBookie.bookie_id: port}, side) if side == "two" else writer
    payload, read, times = os.urandom(1024), 0, []
    ends_s = time.perf_counter() + seconds

    async def reads() -> None:
        nonlocal read
        while time.perf_counter() < ends_s:
            reply = await reader.read_many(name, 7, 0, 63, 2 << 20)
            read += sum(map(len, reply.bodies))

    async def adds() -> None:
        for entry in count():
            began_s = time.perf_counter()
            if began_s > ends_s:
                return
            told = asyncio.get_running_loop().create_future()
            body = entry_of(7, entry, payload)
            writer.add(name, 7, entry, KEY, body, told.set_result)
            assert await told is Status.OK
            times.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.001)

    await writer.read_lac(name, 7)
    cpu = cpu_s(os.getpid()) + cpu_s(bookie_pid)
    await asyncio.gather(adds(), *[reads() for _ in range(4)])
    cpu = cpu_s(os.getpid()) + cpu_s(bookie_pid) - cpu
    times.sort()
    p50, p99 = (times[int(len(times) * share)] * 1e6 for share in (0.5, 0.99))
    found = [p50, p99, read / seconds / 1e6, cpu / read * 1e12]
    print(json.dumps(found), flush=True)
    await writer.close()
    if reader is not writer:
        await reader.close()


async def drive(side: str, port: int, bookie_pid: int, seconds: float) -> None:
    """Run all loads against the bookie; prints for each the CPU us per copy of both ends."""
    bookies = client_of({StubBookie.bookie_id: port}, side)
    for number, (size, in_flight) in enumerate(LOADS):
        load = Load(bookies, size, in_flight)
        began_s = time.perf_counter()
        await load.run(2 * number, WARM_ADDS)
        adds = int(WARM_ADDS / (time.perf_counter() - began_s) * seconds)
        adds = max(WARM_ADDS, min(adds, 2_000_000_000 // size))
        own, theirs, wall = cpu_s(os.getpid()), cpu_s(bookie_pid), time.perf_counter()
        await load.run(2 * number + 1, adds)
        wall = time.perf_counter() - wall
        own, theirs = cpu_s(os.getpid()) - own, cpu_s(bookie_pid) - theirs
        found = [size, in_flight, own / adds * 1e6, theirs / adds * 1e6, adds / wall]
        print(json.dumps(found), flush=True)
    await bookies.close()


def measure(side: str, arguments: argparse.Namespace) -> list[list[float]]:
    """One run of one side: per load its sizes, CPU us per copy of both ends, and adds/s."""
    me = [sys.executable, "-m", "tests.bench.wire_add", "--loop", arguments.loop, "--side", side]
    served = subprocess.Popen(
        [*me, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = served.stdout.readline().strip()
        words = ["--drive", port, str(served.pid), "--seconds", str(arguments.seconds)]
        words += ["--mixed"] if arguments.mixed else []
        command = [*me, *words]
        if arguments.profile == side:
            shown = ["py-spy", "record", "-o", f"wire_add_{side}.txt", "-f", "raw", "-r", "500"]
            command = [str(Path(sys.executable).with_name("py-spy")), *shown[1:], "--", *command]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        served.stdin.close()
        served.wait(30)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="uvloop")
    parser.add_argument("--profile", choices=SIDES, default=None)
    parser.add_argument("--side", choices=(*SIDES, "two"), default="tcp")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--drive", nargs=2, metavar=("PORT", "PID"))
    arguments = parser.parse_args()
    if arguments.serve:
        run(serve(arguments.side), arguments.loop)
    elif arguments.drive:
        port, pid = map(int, arguments.drive)
        work = mixed if arguments.mixed else drive
        run(work(arguments.side, port, pid, arguments.seconds), arguments.loop)
    elif arguments.mixed:
        for side in (*SIDES, "two") * arguments.runs:
            ((p50, p99, rate, cpu),) = measure(side, arguments)
            print(
                f"{side:>4}: a lone add beside reads: p50 {p50:>6,.0f} us, p99 {p99:>6,.0f} us; "
                f"reads {rate:>5,.0f} MB/s; CPU us per MB {cpu:>5,.0f}",
                flush=True,
            )
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    worst: dict[str, float] = {}
    for number in range(arguments.runs):
        sides = SIDES if number % 2 == 0 else SIDES[::-1]
        found = {
            side: {(size, many): rest for size, many, *rest in measure(side, arguments)}
            for side in sides
        }
        for size, many in LOADS:
            tcp, grpc = found["tcp"][size, many], found["grpc"][size, many]
            ratio = sum(tcp[:2]) / sum(grpc[:2])
            key = f"{NAMES[many]}_{size}"
            worst[key] = max(worst.get(key, 0.0), ratio)
            print(
                f"{size:>7} B, {many:>2} in flight: CPU us per copy, client / bookie: "
                f"TCP {tcp[0]:>6.1f} / {tcp[1]:>6.1f}  gRPC {grpc[0]:>6.1f} / {grpc[1]:>6.1f}  "
                f"ratio {ratio:.2f}  adds/s {tcp[2]:>9,.0f} / {grpc[2]:>9,.0f}",
                flush=True,
            )
    print(json.dumps({"bench": "wire_add", **{key: round(one, 3) for key, one in worst.items()}}))


if __name__ == "__main__":
    main()
