"""Plays the cases at Apache Kafka 4.3, and at our port in this process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
from pathlib import Path
from typing import Any, Final

from gateway.config import SaslConfig, TlsConfig
from gateway.core.scram_credentials import Mechanism
from gateway.core.scram_exchange import MECHANISMS, salted_password
from gateway.wire.messages import decode_response, encode_request
from tests.compat.logins.cases import ALL, PLAINTEXT, REAUTHENTICATING, SASL, SESSION_S, Case
from tests.compat.logins.talk import USERS, Talk
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import add_user, client_tls, delete_user, secure_port
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import ports_in_a_row, wait_until

FILE: Final = Path(__file__).with_name("recorded.json")
AT_ONCE: Final = 16
Answers = dict[str, list[Any]]


class SecureKafka(ApacheKafka):
    """Apache Kafka with listeners that need a login."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, FOR_TESTS)
        self.ports = dict(zip((SASL, REAUTHENTICATING), ports_in_a_row(2), strict=True))

    def prepare(self) -> None:
        super().prepare()
        names = {PLAINTEXT: self.port, "CONTROLLER": self.controller_port, **self.ports}
        protocols = {name: "SASL_PLAINTEXT" if name in self.ports else PLAINTEXT for name in names}
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        lines = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in names.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "sasl.enabled.mechanisms": ",".join(ALL),
            f"listener.name.{REAUTHENTICATING.lower()}.connections.max.reauth.ms": str(
                int(SESSION_S * 1000)
            ),
        }
        for name in self.ports:
            for mechanism in ALL:
                kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
                given = f" {users}" if mechanism == "PLAIN" else ""
                key = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
                module = f"org.apache.kafka.common.security.{kind}LoginModule"
                lines[key] = f"{module} required{given};"
        with (self.data / "server.properties").open("a") as written:
            written.writelines(f"{key}={value}\n" for key, value in lines.items())

    def port_of(self, listener: str) -> int:
        return self.ports.get(listener, self.port)


def add_users(kafka: SecureKafka) -> None:
    """Give the users of the cases their SCRAM keys, and wait until they can log in."""
    rows = [
        {
            "name": name,
            "mechanism": mechanism.value,
            "iterations": 4096,
            "salt": b"salt of the user",
            "salted_password": salted_password(mechanism, password, b"salt of the user", 4096),
        }
        for name, password in USERS.items()
        for mechanism in Mechanism
    ]
    for start in range(len(Mechanism)):  # one mechanism of a user in a request
        answer = _asked(
            kafka.port, 51, {"deletions": [], "upsertions": rows[start :: len(Mechanism)]}
        )
        assert all(int(each.error_code.value) == 0 for each in answer.results), answer

    def known() -> bool:
        found = _asked(kafka.port, 50, {"users": None}, version=0)
        return sum(len(each.credential_infos) for each in found.results) == len(rows)

    wait_until(known, "the users", 60.0)


def _asked(port: int, key: int, fields: dict[str, Any], version: int = 0) -> Any:
    frame = encode_request(key, version, 7, "logins", fields)
    with socket.create_connection(("127.0.0.1", port), 20.0) as to:
        to.sendall(struct.pack(">i", len(frame)) + frame)
        reader = to.makefile("rb")
        size = int.from_bytes(reader.read(4), "big")
        return decode_response(key, version, reader.read(size)).body


async def answers_of_kafka(kafka: SecureKafka, cases: list[Case]) -> Answers:
    """Return the answers of a started server with its users."""
    return await _played(cases, lambda case: Talk.connect(kafka.port_of(case.listener), None))


async def answers_of_ours(cases: list[Case], directory: Path) -> Answers:
    """Return the answers of our port. Logins are within TLS: PLAIN is offered there only."""
    authority = Authority(directory / "ca")
    authority.issue("server")
    tls = TlsConfig(keystore=authority.path / "server.pem")
    context = client_tls(authority)
    found: Answers = {}
    for session_s in (0.0, SESSION_S):
        sasl = SaslConfig(mechanisms=ALL, failure_s=0.1, session_s=session_s)
        here = [each for each in cases if (each.listener == REAUTHENTICATING) == (session_s > 0)]
        protocols = ("SASL_SSL", PLAINTEXT)
        async with secure_port(tls=tls, sasl=sasl, protocols=protocols) as port:
            await delete_user(port.users)
            for name, password in USERS.items():
                await add_user(port.users, name, password)

            def connect(case: Case, port: Any = port) -> Any:
                if case.listener == PLAINTEXT:
                    return Talk.connect(port.at(PLAINTEXT), None)
                return Talk.connect(port.at("SASL_SSL"), context)

            found |= await _played(here, connect)
    return found


async def _played(cases: list[Case], connect: Any) -> Answers:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> tuple[str, list[Any]]:
        async with gate:
            talk = await connect(case)
            await case.play(talk)
            talk.client.close()
            return case.name, talk.answers

    return dict(await asyncio.gather(*map(one, cases)))


def write_recorded(answers: Answers) -> None:
    FILE.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


def read_recorded() -> Answers:
    found: Answers = json.loads(FILE.read_text())
    return found


def digest_of(cases: list[Case]) -> str:
    """Return a digest of the names of the cases."""
    return hashlib.sha256("\n".join(sorted(each.name for each in cases)).encode()).hexdigest()


assert set(ALL) == {"PLAIN", *MECHANISMS}
