"""CPU of an add between a client and a bookie: our frames over TCP beside gRPC, in one run.

    python -m tests.bench.wire_add [--runs 3] [--seconds 2] [--profile tcp]

The bookie is the stub of `grpc_add`, which answers at once, so that only the network is compared.
Client and bookie are processes of their own; the CPU is that of both, with all their threads. The
sides take turns. The last line is JSON: for each load the worst ratio of the runs, TCP / gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ledger.adapters.grpc.grpc_bookies import GrpcBookies
from ledger.adapters.grpc.grpc_config import GrpcClientConfig, GrpcServerConfig
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig, TcpServerConfig
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.tcp_server import TcpServer
from ledger.ports.bookies import BookieInfo
from tests.bench.grpc_add import Load, StubBookie, cpu_s, run

SIDES = ("tcp", "grpc")
LOADS = ((1024, 1), (16 * 1024, 1), (1024, 64), (16 * 1024, 64), (128 * 1024, 1), (128 * 1024, 64))
NAMES = {1: "alone", 64: "in_flight_64"}
WARM_ADDS = 500


async def serve(side: str) -> None:
    """A stub bookie until stdin ends; prints its port."""
    bookie = StubBookie()
    if side == "tcp":
        server = TcpServer(bookie, TcpServerConfig())
    else:
        server = BookieServer(bookie, GrpcServerConfig())
    print(await server.start("127.0.0.1", 0), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await server.stop(0)


async def drive(side: str, port: int, bookie_pid: int, seconds: float) -> None:
    """Run all loads against the bookie; prints for each the CPU us per copy of both ends."""
    name = StubBookie.bookie_id
    if side == "tcp":
        bookies = TcpBookies(lambda: {name: BookieInfo(tcp_port=port)}, TcpClientConfig())
    else:
        bookies = GrpcBookies(lambda: {name: BookieInfo(port=port)}, GrpcClientConfig())
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


def measure(side: str, arguments: argparse.Namespace) -> dict[tuple[int, int], tuple[float, ...]]:
    """One run of one side: by load the CPU us per copy of client and bookie, and adds/s."""
    me = [sys.executable, "-m", "tests.bench.wire_add", "--loop", arguments.loop, "--side", side]
    served = subprocess.Popen(
        [*me, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = served.stdout.readline().strip()
        words = ["--drive", port, str(served.pid), "--seconds", str(arguments.seconds)]
        command = [*me, *words]
        if arguments.profile == side:
            shown = ["py-spy", "record", "-o", f"wire_add_{side}.txt", "-f", "raw", "-r", "500"]
            command = [str(Path(sys.executable).with_name("py-spy")), *shown[1:], "--", *command]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        served.stdin.close()
        served.wait(30)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {(size, many): tuple(rest) for size, many, *rest in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="uvloop")
    parser.add_argument("--profile", choices=SIDES, default=None)
    parser.add_argument("--side", choices=SIDES, default="tcp")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--drive", nargs=2, metavar=("PORT", "PID"))
    arguments = parser.parse_args()
    if arguments.serve:
        run(serve(arguments.side), arguments.loop)
    elif arguments.drive:
        port, pid = map(int, arguments.drive)
        run(drive(arguments.side, port, pid, arguments.seconds), arguments.loop)
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    worst: dict[str, float] = {}
    for number in range(arguments.runs):
        sides = SIDES if number % 2 == 0 else SIDES[::-1]
        found = {side: measure(side, arguments) for side in sides}
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
