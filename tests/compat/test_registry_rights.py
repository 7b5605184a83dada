"""Goal: a schema registry works with exactly the rights that docs/security-acls.md lists, and needs
each of them.

Method: Apicurio Registry, which keeps its schemas in topics, logs in by SCRAM as a user with the
rights of the page, and registers a schema. Then each right is taken away in turn: the gateway's
audit log names the resource, and so does the log of the registry, unless it may not write.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.compat.least_rights import (
    Named,
    Right,
    RightsGateway,
    add_user,
    client_keys,
    denials,
    rights_on_page,
)
from tests.peers.processes import wait_until
from tests.peers.registry import Registry

pytestmark = [pytest.mark.compat, pytest.mark.proof, pytest.mark.timeout(400)]

USER = "registry"
WORDS = ("kafkasql", "apicurio", "registry")  # names that each run has for itself
RIGHTS = rights_on_page(USER)
SCHEMA = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
SECONDS_MAX = 45
_runs = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[RightsGateway]:
    with RightsGateway(tmp_path_factory.mktemp("registry") / "data") as started:
        yield started
        assert "Traceback" not in started.output()


class Run:
    """A registry with a user, topics and groups of its own."""

    def __init__(self, broker: RightsGateway, directory: Path, rights: Sequence[Right]) -> None:
        self.named = Named(f"r{next(_runs)}", WORDS)
        self.user = self.named.of(USER)
        add_user(broker, self.user, [self.named.right(each) for each in rights])
        keys = client_keys(broker, self.user)
        own = {
            "apicurio.kafkasql.topic": self.named.of("kafkasql-journal"),
            "apicurio.kafkasql.snapshots.topic": self.named.of("kafkasql-snapshots"),
            "apicurio.events.kafka.topic": self.named.of("registry-events"),
            "apicurio.kafkasql.consumer.group-prefix": self.named.of("apicurio-"),
            **{f"apicurio.kafka.common.{key}": value for key, value in keys.items()},
        }
        self.registry = Registry(directory / "registry", keys["bootstrap.servers"], own).begin()

    def registers(self) -> bool:
        """Return True if the registry is ready and takes a schema."""
        try:
            return self.registry.serves() and self.registry.register("orders-value", SCHEMA) > 0
        except OSError:
            return False

    def output(self) -> str:
        return self.registry.output()


@pytest.fixture
def begin(broker, tmp_path):
    """Return a function that starts a registry with these rights."""
    started: list[Run] = []

    def begin(rights: Sequence[Right]) -> Run:
        started.append(Run(broker, tmp_path, rights))
        return started[-1]

    yield begin
    for each in started:
        each.registry.kill()


def test_the_page_has_a_list():
    assert len(RIGHTS) >= 6
    assert len(set(RIGHTS)) == len(RIGHTS)


def test_the_registry_works_with_the_listed_rights(broker, begin):
    run = begin(RIGHTS)
    run.registry.process.wait_for(run.registers, "a registered schema", SECONDS_MAX)
    assert list(denials(broker, run.user)) == []


def is_named(missing: Right, text: str) -> bool:
    """Return True if the log of a registry has a refusal, and the topic or group of it."""
    if missing.operation == "create":  # the exception has no name, the line before has it
        creating = f"Creating new Kafka topic: {missing.name}\n"
        _, found, after = text.rpartition(creating)
        return bool(found) and "TopicAuthorizationException" in after
    return missing.refusal().search(text) is not None


@pytest.mark.parametrize("right", RIGHTS, ids=str)
def test_the_registry_is_refused_without_a_right(broker, begin, right):
    run = begin([each for each in RIGHTS if each != right])
    missing = run.named.right(right)

    def is_refused() -> bool:
        run.registers()
        return any(denials(broker, run.user))

    wait_until(is_refused, f"a refusal for want of {missing}", SECONDS_MAX, pause_s=0.5)
    refused = {resource for _, resource in denials(broker, run.user)}
    assert all(map(missing.matches, refused)), refused
    if right.operation != "write":
        wait_until(lambda: is_named(missing, run.output()), "a line of the log", SECONDS_MAX)
