"""The row `plain-logins`: what 500 logins by PLAIN a second cost the producers of a gateway.

Quiet phases, phases with TLS handshakes alone and phases with logins alternate in one run, so that
the figures show which part costs what. A login is a TLS handshake, SaslHandshake and a right
password; each comes from one of many loopback addresses, and their total is far beyond what a core
can check. They are offered at a fixed rate, whether earlier ones were answered or not, by a process
of the lowest priority, because clients have machines of their own. Producers write a record of
1 KiB each at a fixed rate, and wait until it is durable.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from gateway.wire.messages import encode_request
from tests.batches import raw_batch, record
from tests.bench.security_sides import PASSWORD, USER, SecureGateway
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client
from tests.peers.processes import ports_in_a_row

LISTENERS = ("PLAINTEXT", "SASL_SSL")
ITERATIONS = 8_192  # 4.6 ms of a core for each password
OFFERED_PER_S, OFFERED_SHARE_MIN = 500, 0.9
ADDRESSES = 64
PRODUCERS, PRODUCE_EVERY_S = 4, 0.02
PHASE_S, PHASES, WARM_S = 5.0, 4, 2.0
HANDSHAKES, LOGINS = "handshakes", "logins"
P99_RATIO_MAX = 2.0
LOGIN_S_MAX = 10.0
_TICK_S = 0.01


class PlainGateway(SecureGateway):
    """An embedded gateway with PLAIN inside TLS, which syncs as by default."""

    def __init__(self, data: Path, authority: Authority) -> None:
        super().__init__(data, authority)
        self.ports = dict(zip(LISTENERS, ports_in_a_row(len(LISTENERS)), strict=True))
        self.port = self.ports["PLAINTEXT"]

    def argv(self) -> list[str]:
        words = [sys.executable, "-m", "gateway", "dev", "--data", str(self.data)]
        words += ["--no-http-port", "--no-ledger-port"]
        for protocol, port in self.ports.items():
            words += ["--listener", f"{protocol}=127.0.0.1:{port}"]
        words += ["--ssl-keystore-location", str(self.authority.path / "server.pem")]
        return [*words, "--sasl-enabled-mechanisms", "PLAIN"]


# -- producers -------------------------------------------------------------------------------------


async def _produce(port: int, partition: int, ends_s: float) -> list[float]:
    """Write records until `ends_s`. Returns how long each took, in seconds."""
    client, took = await Client.connect(port), list[float]()
    data = [{"index": partition, "records": raw_batch(record(0, 0, None, bytes(1_024)))}]
    topics = [{"name": "t", "partition_data": data}]
    next_s = time.monotonic()
    while time.monotonic() < ends_s:
        begun_s = time.monotonic()
        answer = await client.ask(
            0, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=topics
        )
        took.append(time.monotonic() - begun_s)
        row = answer.responses[0].partition_responses[0]
        assert not row.error_code.value, row
        next_s = max(next_s + PRODUCE_EVERY_S, time.monotonic())
        await asyncio.sleep(next_s - time.monotonic())
    client.close()
    Client.opened.remove(client)
    return took


async def _produced(port: int, seconds: float) -> list[float]:
    ends_s = time.monotonic() + seconds
    found = await asyncio.gather(*(_produce(port, at, ends_s) for at in range(PRODUCERS)))
    return [each for took in found for each in took]


# -- logins ----------------------------------------------------------------------------------------


class Logins:
    """A process that offers logins when it is asked to."""

    def __init__(self, port: int) -> None:
        words = [sys.executable, "-m", "tests.bench.plain_logins", str(port)]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self._child.stdout is not None and self._child.stdin is not None
        self._out, self._in = self._child.stdout, self._child.stdin
        assert self._out.readline() == "ready\n"

    def begin(self, what: str, seconds: float) -> None:
        self._in.write(f"{what} {seconds}\n")
        self._in.flush()

    def counts(self) -> dict[str, float]:
        """Return what became of the logins of a phase."""
        return dict(json.loads(self._out.readline()))

    def __enter__(self) -> Logins:
        return self

    def __exit__(self, *error: object) -> None:
        self._in.close()
        self._child.wait(30.0)


class _Place(NamedTuple):
    """A listener, and what is done there."""

    port: int
    tls: ssl.SSLContext
    what: str


async def _login(place: _Place, number: int, seen: Counter[str]) -> None:
    try:
        async with asyncio.timeout(LOGIN_S_MAX):
            code = await _code_of_login(place, number)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        seen["ended"] += 1
    else:
        seen["refused" if code else "logged_in"] += 1


async def _code_of_login(place: _Place, number: int) -> int:
    """Log in, or only complete a TLS handshake. Returns the error code."""
    source = (f"127.0.{1 + number % ADDRESSES // 32}.{1 + number % 32}", 0)
    token = f"\0{USER}\0{PASSWORD}".encode()
    frames = (
        encode_request(17, 1, 1, "c", {"mechanism": "PLAIN"}),
        encode_request(36, 2, 2, "c", {"auth_bytes": token}),
    )
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.port, ssl=place.tls, server_hostname="localhost", local_addr=source
    )
    try:
        if place.what == HANDSHAKES:
            return 0
        writer.write(b"".join(len(each).to_bytes(4, "big") + each for each in frames))
        for _ in frames:
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = await reader.readexactly(size)
    finally:
        writer.transport.abort()
    return int.from_bytes(answer[5:7], "big")  # behind the correlation id and tags


async def _offer(place: _Place, seconds: float) -> dict[str, float]:
    """Offer logins for this time, and return their rates. Those still waiting are `ended`."""
    # uvloop reports each connection that is cancelled in its handshake.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    seen: Counter[str] = Counter()
    running: set[asyncio.Task[None]] = set()
    begun_s, offered = time.monotonic(), 0
    while (now_s := time.monotonic()) < begun_s + seconds:
        for number in range(offered, int((now_s - begun_s) * OFFERED_PER_S)):
            running.add(asyncio.create_task(_login(place, number, seen)))
            offered += 1
        running = {each for each in running if not each.done()}
        await asyncio.sleep(_TICK_S)
    rates = {f"{name}_per_s": seen[name] / seconds for name in ("logged_in", "refused", "ended")}
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return {"offered_per_s": offered / seconds, **rates, "waiting": len(running)}


def _serve(port: int) -> None:
    """Offer logins for each line with seconds on stdin, and print what became of them."""
    import uvloop

    os.setpriority(os.PRIO_PROCESS, 0, 19)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    print("ready", flush=True)
    for line in sys.stdin:
        what, seconds = line.split()
        offered = _offer(_Place(port, tls, what), float(seconds))
        print(json.dumps(uvloop.run(offered)), flush=True)


# -- the row ---------------------------------------------------------------------------------------


def _p99_ms(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)] * 1_000


def _p50_ms(took: list[float]) -> float:
    return sorted(took)[len(took) // 2] * 1_000


def phases(broker: PlainGateway) -> dict[str, Any]:
    """Measure producers in quiet phases and beside logins, one after the other."""
    port = broker.ports["PLAINTEXT"]
    took: dict[str, list[float]] = {"quiet": [], HANDSHAKES: [], LOGINS: []}
    counts: Counter[str] = Counter()
    with Logins(broker.ports["SASL_SSL"]) as logins:
        asyncio.run(_produced(port, WARM_S))
        for _ in range(PHASES):
            took["quiet"] += asyncio.run(_produced(port, PHASE_S))
            for what in (HANDSHAKES, LOGINS):
                logins.begin(what, PHASE_S)
                took[what] += asyncio.run(_produced(port, PHASE_S))
                rates = logins.counts().items()
                counts.update({f"{what} {name}": rate for name, rate in rates})
    p99_ms = {name: round(_p99_ms(each), 2) for name, each in took.items()}
    return {
        "p50_ms": {name: round(_p50_ms(each), 2) for name, each in took.items()},
        "p99_ms": p99_ms,
        "p99_ratio": round(p99_ms[LOGINS] / p99_ms["quiet"], 2),
        "samples": {name: len(each) for name, each in took.items()},
        **{name: round(rate / PHASES, 1) for name, rate in counts.items()},
    }


def within(found: dict[str, Any]) -> bool:
    """Return whether enough logins were offered, and producers did not wait much longer."""
    offered = found[f"{LOGINS} offered_per_s"] >= OFFERED_SHARE_MIN * OFFERED_PER_S
    return bool(offered and found["p99_ratio"] <= P99_RATIO_MAX)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
