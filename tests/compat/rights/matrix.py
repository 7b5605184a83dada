"""Each API by each protocol and mechanism, as a super user, a user with rights, and one without.

    python -m tests.compat.rights.matrix            # an embedded gateway
    python -m tests.compat.rights.matrix --cluster  # two gateways, and clients at both

The cases are those of the rights, in their oldest and newest versions. Users are the same by every
mechanism: `super`, `allowed`, which has the rights of all cases, and `denied`. Without a login a
client is `User:ANONYMOUS`, whose rights depend on its address; no super user is one of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from gateway.wire.messages import decode_response, encode_request
from tests.compat.rights.all_cases import CASES
from tests.compat.rights.language import Case, Facts
from tests.compat.rights.world import creation_of, denials, preparation, reduced, versions_of
from tests.gateway.issuer import AUDIENCE, ISSUER, Issuer, message_of
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway, Gateway
from tests.peers.processes import ports_in_a_row
from tests.peers.zookeeper import ZooKeeper

LISTENERS = {
    "OPEN": "PLAINTEXT",
    "ENCRYPTED": "SSL",
    "CERTIFICATE": "SSL",
    "LOGIN": "SASL_SSL",
    "INSIDE": "SASL_PLAINTEXT",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = ("no TLS", "TLS", "mTLS", *MECHANISMS)
SUPER, ALLOWED, DENIED = ROLES = ("super", "allowed", "denied")
HOSTS = {SUPER: "127.0.0.1", ALLOWED: "127.0.0.2", DENIED: "127.0.0.3"}
ANONYMOUS = ("no TLS", "TLS")
PASSWORD = "marked-secret-7Qz"
SESSION_MS = 20_000
ANSWER_S_MAX, WAITS_S = 20.0, 1.5  # of a refusal; of an answer for which a client may have to wait
SETTLED_S_MAX = 60.0
WAITING = (1, 11, 14)  # Fetch, JoinGroup and SyncGroup wait for others
_NOT_YET = (
    "coordinator_not_available",
    "coordinator_load_in_progress",
    "not_coordinator",
    "not_leader_or_follower",
    "unknown_topic_or_partition",
    "leader_not_available",
)
_WITHOUT_CODE = {(35, 1), (35, 2)}  # DescribeLogDirs before v3


class Keys(NamedTuple):
    """Certificates and tokens of the users."""

    authority: Authority
    issuer: Issuer


def made_keys(directory: Path) -> Keys:
    authority, issuer = Authority(directory / "pki"), Issuer()
    for name in ("server", *ROLES):
        authority.issue(name)
    (authority.path / "jwks.json").write_bytes(issuer.jwks())
    return Keys(authority, issuer)


def _lines(ports: dict[str, int], authority: Authority) -> dict[str, Any]:
    """Return the settings of a gateway with these listeners, by Kafka's keys."""
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{LISTENERS[name]}" for name in ports),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.location": authority.path / "server.pem",
        "ssl.truststore.location": authority.trusted,
        "listener.name.certificate.ssl.client.auth": "required",
        "listener.name.certificate.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/L",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{authority.path / 'jwks.json'}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer": "standard",
        "super.users": f"User:{SUPER};User:gateway",
        "group.initial.rebalance.delay.ms": 0,
    }


def _written(file: Path, lines: dict[str, Any]) -> str:
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(file)


class _Embedded(Gateway):
    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory / "data")
        self._directory, self._authority = directory, authority
        self.ports = dict(zip(LISTENERS, ports_in_a_row(len(LISTENERS)), strict=True))
        self.port = self.ports["OPEN"]

    def argv(self) -> list[str]:
        lines = _lines(self.ports, self._authority)
        file = _written(self._directory / "server.properties", lines)
        words = [install.gateway_python(), "-m", "gateway", "dev", "--data", str(self.data)]
        return [*words, "--no-http-port", "--no-ledger-port", "--config", file]


class _Member(ClusterGateway):
    """A gateway of a cluster whose gateways log in at each other."""

    def __init__(self, directory: Path, servers: str, authority: Authority, node_id: int) -> None:
        super().__init__(directory / f"gateway-{node_id}", servers, node_id=node_id)
        self._directory, self._authority = directory, authority
        self.ports = dict(zip(LISTENERS, ports_in_a_row(len(LISTENERS)), strict=True))
        self.port = self.ports["OPEN"]
        self.environment = {"MARKED": PASSWORD}

    def argv(self) -> list[str]:
        lines = _lines(self.ports, self._authority) | {"inter.broker.listener.name": "INSIDE"}
        file = _written(self._directory / f"gateway-{self.node_id}.properties", lines)
        words = [install.gateway_python(), "-m", "gateway", "serve", "--config", file]
        words += ["--zookeeper", self.zookeeper, "--node-id", str(self.node_id)]
        words += ["--inter-broker-user", "gateway", "--inter-broker-password", "env:MARKED"]
        return [*words, "--session", f"{SESSION_MS}ms"]


def _add_users(*place: str) -> None:
    """Write all users to the metadata, before a gateway listens."""
    for name in (*ROLES, "gateway"):
        words = [install.gateway_python(), "-m", "gateway", "user", "bootstrap", name, *place]
        words += ["--password", "env:MARKED"]
        environment = {**os.environ, "MARKED": PASSWORD}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def embedded(directory: Path, keys: Keys) -> Iterator[list[Any]]:
    """Run one embedded gateway."""
    gateway = _Embedded(directory, keys.authority)
    with gateway:
        pass  # it makes the metadata
    _add_users("--data", str(gateway.data))
    with gateway:
        yield [gateway]


@contextlib.contextmanager
def cluster(directory: Path, keys: Keys) -> Iterator[list[Any]]:
    """Run two gateways with ZooKeeper and three bookies."""
    with ExitStack() as stack:
        servers = stack.enter_context(ZooKeeper(directory / "zookeeper")).servers
        for number in range(3):
            data = directory / f"bookie-{number}" / "data"
            data.parent.mkdir(parents=True)
            session = f"{SESSION_MS}ms"
            bookie = BookieProcess(data, servers, name=f"bookie-{number}", session=session)
            stack.enter_context(bookie)
        _add_users("--zookeeper", servers)
        yield [
            stack.enter_context(_Member(directory, servers, keys.authority, node_id))
            for node_id in range(2)
        ]


# -- clients ---------------------------------------------------------------------------------------


class Clients:
    """Connections to the gateways, one for each way and role, which open again after an end."""

    def __init__(self, gateways: Sequence[Any], keys: Keys) -> None:
        self._gateways, self._keys = gateways, keys
        self._open: dict[tuple[str, str, int], Client] = {}

    async def ask(
        self, way: str, role: str, key: int, version: int, fields: dict[str, Any], at: int = 0
    ) -> Any:
        """Return the decoded answer, or None if the connection ended or nothing came in time."""
        place = way, role, at
        client = self._open.get(place)
        if client is None:
            client = self._open[place] = await self._connect(way, role, self._gateways[at].ports)
        waits = key in WAITING and role != DENIED
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(WAITS_S if waits else ANSWER_S_MAX):
                client.number += 1
                frame = encode_request(key, version, client.number, "matrix", fields)
                client.send_frame(frame)
                return decode_response(key, version, await client.frame()).body
        self._close(place)
        return None

    async def _connect(self, way: str, role: str, ports: dict[str, int]) -> Client:
        authority = self._keys.authority
        names = {"no TLS": "OPEN", "TLS": "ENCRYPTED", "mTLS": "CERTIFICATE"}
        file = authority.path / f"{role}.pem" if way == "mTLS" else None
        tls = None if way == "no TLS" else client_tls(authority, file)
        source = (HOSTS[role] if way in ANONYMOUS else HOSTS[SUPER], 0)
        port = ports[names.get(way, "LOGIN")]
        client = Client(
            *await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=source)
        )
        if way in MECHANISMS:
            answer = await self._logged_in(client, way, role)
            assert not answer.error_code.value, f"{way} as {role}: {answer}"
        return client

    async def _logged_in(self, client: Client, mechanism: str, role: str) -> Any:
        if mechanism == "PLAIN":
            return await client.plain(role, PASSWORD)
        if mechanism == "OAUTHBEARER":
            await client.handshake(mechanism)
            return await client.token(message_of(self._keys.issuer.token(sub=role)))
        return await client.scram(mechanism, role, PASSWORD)

    def _close(self, place: tuple[str, str, int]) -> None:
        client = self._open.pop(place)
        client.close()
        Client.opened.remove(client)

    def close(self) -> None:
        for place in list(self._open):
            self._close(place)

    async def settled(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        """Return the answer of the gateway that is responsible, to the super user."""
        answer: Any = None
        async with asyncio.timeout(SETTLED_S_MAX):
            for at in itertools.cycle(range(len(self._gateways))):
                answer = await self.ask("SCRAM-SHA-512", SUPER, key, version, fields, at)
                if not any(f"{each}:" in repr(answer) for each in _NOT_YET):
                    break
                await asyncio.sleep(0.02)
        return answer

    async def each_obeys(self, count: int) -> None:
        """Wait until every gateway has this number of ACLs."""
        wanted = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        waiting = list(range(len(self._gateways)))
        async with asyncio.timeout(SETTLED_S_MAX):
            while waiting:
                answer = await self.ask("PLAIN", SUPER, 29, 3, wanted, waiting[0])
                if sum(len(each.acls) for each in answer.resources) == count:
                    waiting.pop(0)
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def connected(gateways: Sequence[Any], keys: Keys) -> AsyncGenerator[Clients]:
    clients = Clients(gateways, keys)
    try:
        yield clients
    finally:
        clients.close()


# -- cells -----------------------------------------------------------------------------------------


async def prepared(clients: Clients) -> Facts:
    """Make the resources, and give the allowed users the rights of all cases."""
    making, answer = preparation(), None
    try:
        while True:
            answer = await clients.settled(*making.send(answer))
    except StopIteration as made:
        facts: Facts = made.value
    needs = sorted({need for case in CASES for need in case.needs})
    allowed = {"principal": f"User:{ALLOWED}"}
    anonymous = {"principal": "User:ANONYMOUS"}
    creations = [creation_of(each, "*") | allowed for each in needs]
    creations += [creation_of(each, HOSTS[ALLOWED]) | anonymous for each in needs]
    answer = await clients.settled(30, 3, {"creations": creations})
    assert {int(row.error_code) for row in answer.results} == {0}, answer
    await clients.each_obeys(len(creations))
    return facts


def fault_of(case: Case, version: int, answers: dict[str, list[Any]]) -> Iterator[str]:
    """Yield what is wrong with the answers of the gateways to one request of each role."""
    denied = answers[DENIED]
    refused = denials(denied)
    if None in denied:
        yield f"{DENIED}: no answer"
    elif case.needs and not refused and not case.hides and (case.key, version) not in _WITHOUT_CODE:
        yield f"{DENIED}: is not refused"
    if case.hides and reduced(denied, {}) == reduced(answers.get(SUPER, answers[ALLOWED]), {}):
        yield f"{DENIED}: sees what a user with rights sees"
    for role in (ALLOWED, SUPER):
        if role not in answers:
            continue
        answer = answers[role]
        if None in answer and case.key not in WAITING:
            yield f"{role}: no answer"
        if case.needs and refused and denials(answer) == refused:
            yield f"{role}: is refused"
        if role == SUPER and denials(answer):
            yield f"{role}: is refused"


async def cells(gateways: Sequence[Any], keys: Keys) -> tuple[Counter[str], list[str]]:
    """Ask everything. Returns how many cells were asked by each way, and what is wrong."""
    asked: Counter[str] = Counter()
    faults: list[str] = []
    async with connected(gateways, keys) as clients:
        facts = await prepared(clients)
        # A case that only hides compares what is there, before others delete it.
        for case in sorted(CASES, key=lambda each: not each.hides):
            for version in sorted({versions_of(case)[0], versions_of(case)[-1]}):
                answers = await _answers(clients, case, version, facts, len(gateways))
                asked.update(way for way, _ in answers)
                faults += _faults(case, version, answers)
    return asked, faults


async def _answers(
    clients: Clients, case: Case, version: int, facts: Facts, count: int
) -> dict[tuple[str, str], list[Any]]:
    """Ask one request by all ways: first without rights, because others delete what it names."""
    found: dict[tuple[str, str], list[Any]] = {}
    for role in (DENIED, ALLOWED, SUPER):
        for number, way in enumerate(WAYS):
            if role != SUPER or way not in ANONYMOUS:
                # A gateway lists only what it coordinates.
                places = range(count) if case.hides else (number % count,)
                body = case.body(facts, version)
                found[way, role] = [
                    await clients.ask(way, role, case.key, version, body, at) for at in places
                ]
    return found


def _faults(case: Case, version: int, answers: dict[tuple[str, str], list[Any]]) -> Iterator[str]:
    for way in WAYS:
        of_way = {role: answers[way, role] for role in ROLES if (way, role) in answers}
        for each in fault_of(case, version, of_way):
            yield f"{case} v{version} by {way}: {each}"


def run(directory: Path, *, on_cluster: bool) -> tuple[Counter[str], list[str]]:
    """Start the gateways, and ask everything."""
    keys = made_keys(directory)
    with (cluster if on_cluster else embedded)(directory, keys) as gateways:
        asked, faults = asyncio.run(cells(gateways, keys))
        for each in gateways:
            log = each.output()
            faults += [word for word in ("Traceback", PASSWORD) if word in log]
    return asked, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cluster", action="store_true", help="two gateways in place of one")
    on_cluster = parser.parse_args().cluster
    with tempfile.TemporaryDirectory() as directory:
        asked, faults = run(Path(directory), on_cluster=on_cluster)
    for each in faults:
        print(each)
    apis = len({case.key for case in CASES})
    print(json.dumps({"matrix": "cluster" if on_cluster else "embedded", "apis": apis, **asked}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
