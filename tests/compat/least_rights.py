"""Applications that have exactly the rights that a list in docs/security-acls.md names.

The list is the lines `gateway acl add User:NAME ...` of one principal. A run of an application has
names of its own, so that the runs at one broker share neither topics nor groups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import free_port

PAGE = install.ROOT / "docs" / "security-acls.md"
KINDS = ("gateway", "kafka")
LISTENER, MECHANISM = "SASL_PLAINTEXT", "SCRAM-SHA-512"
PASSWORD = "marked-secret-7Qz"
SECONDS_MAX = 60
_LINE = re.compile(
    r"^gateway acl add User:(?P<user>\S+) (?P<operations>\S+)"
    r" (?P<kind>[a-z-]+):(?P<name>\S+)(?P<prefix> --prefix)?$",
    re.MULTILINE,
)


class Right(NamedTuple):
    """One operation on a resource, or on all whose names begin so."""

    operation: str
    kind: str
    name: str
    prefixed: bool

    def __str__(self) -> str:
        return f"{self.operation} {self.kind}:{self.name}"

    def refusal(self) -> re.Pattern[str]:
        """Return what the clients of Java report if this right is missing.

        It names the topic or the group. Kafka's text about transactional ids has no name.
        """
        name = re.escape(self.name) + ("" if self.prefixed else r"\b")
        if self.kind == "topic":
            words = r"Not authorized to access topics: \[|Could not create topic "
            return re.compile(f"({words}){name}")
        if self.kind == "group":
            return re.compile(f"Not authorized to access group: {name}")
        assert self.kind == "transactional-id", self
        return re.compile("TransactionalIdAuthorizationException")

    def matches(self, resource: str) -> bool:
        """Return True if this right is about a resource, by its name in the audit log."""
        kind, _, name = resource.partition(":")
        if kind != self.kind.replace("-", "_").upper():
            return False
        return name.startswith(self.name) if self.prefixed else name == self.name


def rights_on_page(user: str) -> list[Right]:
    """Return the list of a user, one right for each operation."""
    return [
        Right(operation, line["kind"], line["name"], line["prefix"] is not None)
        for line in _LINE.finditer(PAGE.read_text())
        if line["user"] == user
        for operation in line["operations"].split(",")
    ]


class Named(NamedTuple):
    """The names of one run: each of `words`, wherever the list has it, gets the name of the run."""

    run: str
    words: tuple[str, ...]

    def of(self, text: str) -> str:
        """Return the name that a resource or a user has in this run."""
        pattern = rf"\b({'|'.join(map(re.escape, self.words))})\b"
        return re.sub(pattern, rf"\1-{self.run}", text)

    def right(self, right: Right) -> Right:
        return right._replace(name=self.of(right.name))


class RightsGateway(Gateway):
    """The embedded gateway with ACLs, a listener for users, and one for the admin."""

    def __init__(self, data: Path) -> None:
        self.login_port = free_port()
        self.audit = data.with_name("audit.jsonl")
        super().__init__(data)

    def argv(self) -> list[str]:
        words = [install.gateway_python(), "-m", "gateway", "dev", "--data", str(self.data)]
        words += ["--listener", f"PLAINTEXT=127.0.0.1:{self.port}"]
        words += ["--listener", f"{LISTENER}=127.0.0.1:{self.login_port}"]
        words += ["--sasl-enabled-mechanisms", MECHANISM, "--authorizer", "standard"]
        words += ["--super-users", "User:ANONYMOUS", "--audit-log", str(self.audit)]
        return [*words, "--no-http-port", "--no-ledger-port", "--group-initial-rebalance-delay=0s"]


class RightsKafka(ApacheKafka):
    """Apache Kafka with ACLs, a listener for users, and one for the admin."""

    def __init__(self, data: Path) -> None:
        authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        more = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"}
        super().__init__(data, {**FOR_TESTS, **more})
        self.login_port = free_port()

    def prepare(self) -> None:
        super().prepare()
        ports = {"PLAINTEXT": self.port, "CONTROLLER": self.controller_port}
        ports[LISTENER] = self.login_port
        own = f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        lines = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{LISTENER if name == LISTENER else 'PLAINTEXT'}" for name in ports
            ),
            "sasl.enabled.mechanisms": MECHANISM,
            f"{own}.sasl.jaas.config": f"{module} required;",
        }
        with (self.data / "server.properties").open("a") as written:
            written.writelines(f"{key}={value}\n" for key, value in lines.items())


def new_broker(kind: str, data: Path) -> RightsGateway | RightsKafka:
    """Return a broker with an authorizer, not started."""
    return RightsKafka(data) if kind == "kafka" else RightsGateway(data)


def denials(broker: Broker, user: str) -> Iterator[tuple[str, str]]:
    """Yield what the gateway refused to a user by its audit log: the operation and the resource."""
    assert isinstance(broker, RightsGateway)
    lines = broker.audit.read_text().splitlines() if broker.audit.exists() else []
    for row in map(json.loads, lines):
        if row["event"] == "denied" and row["principal"] == f"User:{user}":
            yield row["operation"], row["resource"]


def client_keys(broker: RightsGateway | RightsKafka, user: str) -> dict[str, str]:
    """Return Kafka's client keys of a user."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.login_port}",
        "security.protocol": LISTENER,
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{module} required username="{user}" password="{PASSWORD}";',
    }


def admin_of(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def create_topics(broker: Broker, topics: Sequence[NewTopic]) -> None:
    admin = admin_of(broker)
    for done in admin.create_topics(list(topics)).values():
        done.result(SECONDS_MAX)


def add_user(broker: Broker, user: str, rights: Sequence[Right]) -> None:
    """Store a user, and give it these rights."""
    admin = admin_of(broker)
    key = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, key, PASSWORD.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(SECONDS_MAX)
    bindings = [_binding(each, f"User:{user}") for each in rights]
    for done in admin.create_acls(bindings).values():
        done.result(SECONDS_MAX)


def _binding(right: Right, principal: str) -> AclBinding:
    return AclBinding(
        ResourceType[right.kind.replace("-", "_").upper()],
        right.name,
        ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
        principal,
        "*",
        AclOperation[right.operation.replace("-", "_").upper()],
        AclPermissionType.ALLOW,
    )
