"""Hostile frames before a login, at a real gateway, beside a producer and a consumer that log in.

    make proof-hostile-logins FRAMES=1000000
    python -m tests.hostile.logins --frames 20000 --seed 7

The frames are those of [login_frames.py](login_frames.py), on listeners with SASL_SSL and
SASL_PLAINTEXT. Some connections log in first, and send them behind the login. Afterwards every
acknowledged record must have been consumed once and in order, the log must have no error, the
memory of the gateway must have grown by 64 MiB at most, and a client must be able to log in.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import secrets
import ssl
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.gateway.issuer import AUDIENCE, ISSUER, Issuer
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls
from tests.hostile.crowd import Honest, errors_in, prepare
from tests.hostile.login_frames import MECHANISMS, Drawn
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import ports_in_a_row, status_bytes, wait_until

MIB = 1 << 20
GROWTH_MB_MAX = 64
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")
USER, PASSWORD = "alice", "marked-secret-7Qz"
AT_ONCE = 200  # connections
ENCRYPTED_SHARE, LOGIN_SHARE = 0.1, 0.1  # of connections; of the encrypted ones
LOOK_S = 0.2
HONEST_FIRST = 100  # records that are acknowledged before the memory is measured
ANSWER_S = (0.15, 0.15, 0.15, 0.6)  # a refusal comes after 0.25 s; most clients do not wait


class LoginGateway(Gateway):
    """An embedded gateway whose listeners take every mechanism."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory / "data")
        self.directory, self.authority = directory, authority
        self.ports = dict(zip(LISTENERS, ports_in_a_row(len(LISTENERS)), strict=True))
        self.port = self.ports["PLAINTEXT"]

    def argv(self) -> list[str]:
        here = self.authority.path
        lines = {
            "listeners": ",".join(f"{k}://127.0.0.1:{port}" for k, port in self.ports.items()),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.keystore.location": here / "server.pem",
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{here / 'jwks.json'}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        file = self.directory / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        words = [install.gateway_python(), "-m", "gateway", "dev", "--data", str(self.data)]
        return [*words, "--no-http-port", "--no-ledger-port", "--config", str(file)]


class Attack:
    """Connections with hostile frames, many at once."""

    def __init__(self, gateway: LoginGateway, seed: int) -> None:
        self._ports = gateway.ports
        self._tls = client_tls(gateway.authority)
        self._drawn = Drawn(seed)
        self.done: Counter[str] = Counter()

    async def run(self, frames: int) -> None:
        """Send this number of frames at least."""

        async def one_after_the_other() -> None:
            while self.done["frames"] < frames:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    await self._connection()

        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))

    async def _connection(self) -> None:
        drawn, draw = self._drawn, self._drawn.draw
        encrypted = draw.random() < ENCRYPTED_SHARE
        logs_in = encrypted and draw.random() < LOGIN_SHARE
        script = drawn.script_of_login(USER, PASSWORD) if logs_in else drawn.script(9)
        answer_s, apart = draw.choice(ANSWER_S), draw.random() < 0.2
        port = self._ports["SASL_SSL" if encrypted else "SASL_PLAINTEXT"]
        tls = self._tls if encrypted else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        self.done["connections"] += 1
        self.done["logins"] += logs_in
        try:
            for each in script:
                writer.write(each)
                self.done["frames"] += 1
                if apart:
                    await asyncio.sleep(0)
            async with asyncio.timeout(answer_s):
                await writer.drain()
                while found := await reader.read(1 << 16):
                    self.done["bytes"] += len(found)
            self.done["closed"] += 1
        finally:
            writer.transport.abort()


class Memory:
    """The largest resident memory of a process while the block lasts, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before = self.most = status_bytes(pid, "VmRSS")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.most = max(self.most, status_bytes(self._pid, "VmRSS"))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def made_authority(directory: Path) -> Authority:
    """Return an authority with a certificate of the server, and the keys of an issuer of tokens."""
    authority = Authority(directory / "pki")
    authority.issue("server")
    (authority.path / "jwks.json").write_bytes(Issuer().jwks())
    return authority


def add_user(servers: str) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(each, 4096)
        wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(30.0)


def honest_at(gateway: LoginGateway) -> Honest:
    """Return clients that log in by SCRAM inside TLS."""
    security = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(gateway.authority.trusted),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    return Honest(f"127.0.0.1:{gateway.ports['SASL_SSL']}", security)


async def _login(port: int, tls: ssl.SSLContext) -> int:
    """Log in as a new client does. Returns the error code."""
    client = await Client.connect(port, tls)
    try:
        async with asyncio.timeout(30.0):
            return int((await client.scram(user=USER, password=PASSWORD)).error_code.value)
    finally:
        client.close()
        Client.opened.remove(client)


def run(frames: int, seed: int, directory: Path) -> dict[str, Any]:
    """Attack a gateway; return what was seen, with a list of what is wrong."""
    with LoginGateway(directory, made_authority(directory)) as gateway:
        prepare(gateway.bootstrap)
        add_user(gateway.bootstrap)
        honest, attack = honest_at(gateway), Attack(gateway, seed)
        honest.start()
        try:
            wait_until(lambda: honest.read >= HONEST_FIRST or honest.wrong, "the first records")
            first = honest.acknowledged
            with Memory(gateway.process.pid) as memory:
                asyncio.run(attack.run(frames))
            during = honest.acknowledged - first
            code = asyncio.run(_login(gateway.ports["SASL_SSL"], client_tls(gateway.authority)))
        finally:
            honest.stop()
        log = gateway.process.output()
    growth_mb = (memory.most - memory.before) / MIB
    wrong = [*honest.wrong, *errors_in(log)]
    if PASSWORD in log:
        wrong.append("the log has a password")
    if honest.read < honest.acknowledged:
        wrong.append(f"read {honest.read} of {honest.acknowledged}")
    if growth_mb > GROWTH_MB_MAX:
        wrong.append(f"the memory grew by {growth_mb:.0f} MiB, at most {GROWTH_MB_MAX}")
    if not during:
        wrong.append("no record was acknowledged meanwhile")
    if code:
        wrong.append(f"a client cannot log in afterwards: {code}")
    return {
        "proof": "hostile-logins",
        "seed": seed,
        **attack.done,
        "acknowledged": honest.acknowledged,
        "acknowledged_meanwhile": during,
        "read": honest.read,
        "before_mb": round(memory.before / MIB, 1),
        "growth_mb": round(growth_mb, 1),
        "wrong": wrong[:20],
    }


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--frames", type=int, default=1_000_000)
    words.add_argument("--seed", type=int, default=None)
    asked = words.parse_args()
    seed = secrets.randbits(30) if asked.seed is None else asked.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    # The clients go on writing after a refusal: asyncio would log each such write.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="hostile-logins-") as directory:
        seen = run(asked.frames, seed, Path(directory))
    print(json.dumps(seen))
    return 1 if seen["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
