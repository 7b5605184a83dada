"""Goal: Kafka Connect works with exactly the rights that docs/security-acls.md lists, and needs
each of them.

Method: a worker in distributed mode, with exactly-once support, logs in by SCRAM as a user with the
rights of the page. A source connector copies the lines of a file to a topic, and a sink connector
copies them from there to another file. Then each right is taken away in turn: the worker or a task
fails with Kafka's exception that names the resource, and the gateway's audit log names it too.
Apache Kafka passes the same tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.compat.least_rights import (
    KINDS,
    Named,
    Right,
    RightsGateway,
    RightsKafka,
    add_user,
    client_keys,
    create_topics,
    denials,
    new_broker,
    rights_on_page,
)
from tests.compat.test_java_connect import WORKER
from tests.peers.connect import Worker
from tests.peers.processes import TookTooLong, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof, pytest.mark.timeout(400)]

USER = "connect"
WORDS = ("workers", "copies", "copy")  # names that each run has for itself
RIGHTS = rights_on_page(USER)
# Not needed: without it the worker does not check that its topics are compacted.
OPTIONAL = "DESCRIBE_CONFIGS"
LINES = [f"line {number} ".ljust(600, "x") for number in range(5)]  # one in each poll
SECONDS_MAX = 120
_runs = itertools.count(1)


@pytest.fixture(scope="module", params=KINDS)
def broker(request, tmp_path_factory) -> Iterator[RightsGateway | RightsKafka]:
    with new_broker(request.param, tmp_path_factory.mktemp("connect") / "data") as started:
        yield started
        assert "Traceback" not in started.output()


class Cluster:
    """One worker, with a user, topics, groups and connectors of its own."""

    def __init__(
        self,
        broker: RightsGateway | RightsKafka,
        directory: Path,
        rights: Sequence[Right],
        existing: Sequence[str] = (),
        *,
        support: str = "enabled",
    ) -> None:
        self.broker = broker
        self.named = Named(f"r{next(_runs)}", WORDS)
        self.user = f"{USER}-{self.named.run}"
        self.source, self.target = directory / "source.txt", directory / "target.txt"
        self.source.write_text("".join(f"{line}\n" for line in LINES))
        topic = self.named.of("copies")
        compact = {"cleanup.policy": "compact"}
        own = [NewTopic(self.named.of(each), 1, 1, config=compact) for each in existing]
        create_topics(broker, [NewTopic(topic, 1, 1), *own])
        add_user(broker, self.user, [self.named.right(each) for each in rights])
        self.worker = Worker(directory, self._settings(support))
        self.connectors = {
            "lines": {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                "tasks.max": "1",
                "file": str(self.source),
                "topic": topic,
                "batch.size": "1",
                "exactly.once.support": "required" if support == "enabled" else "requested",
                "transaction.boundary": "poll",
            },
            self.named.of("copy"): {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
                "tasks.max": "1",
                "file": str(self.target),
                "topics": topic,
            },
        }

    def _settings(self, support: str) -> dict[str, str]:
        keys = client_keys(self.broker, self.user)
        group = self.named.of("workers")
        own = {f"{each}.storage.topic": f"{group}-{each}s" for each in ("config", "offset")}
        for prefix in ("producer", "consumer", "admin"):
            own |= {f"{prefix}.{key}": value for key, value in keys.items()}
        return {
            **WORKER,
            **keys,
            **own,
            "group.id": group,
            "status.storage.topic": f"{group}-status",
            "exactly.once.source.support": support,
        }

    def create(self) -> bool:
        """Create the connectors that are missing. Return True once there are both."""
        found = self.worker.ask("/connectors")
        if found is None:
            return False
        missing = self.connectors.keys() - set(found)
        return all(
            self.worker.ask(f"/connectors/{each}/config", self.connectors[each])
            for each in sorted(missing)
        )

    def works(self) -> bool:
        """Return True if both connectors run, and all lines are in the file of the sink."""
        copied = self.target.read_text().splitlines() if self.target.exists() else []
        return copied == LINES and all(
            self.worker.states(each) == ["RUNNING"] for each in self.connectors
        )

    def refusals(self) -> set[str]:
        """Return what the gateway refused, apart from rights that are not needed."""
        found = denials(self.broker, self.user)
        return {resource for operation, resource in found if operation != OPTIONAL}


@pytest.fixture
def begin(broker, tmp_path):
    """Return a function that starts a worker with these rights."""
    started: list[Cluster] = []

    def begin(rights: Sequence[Right], **more) -> Cluster:
        started.append(Cluster(broker, tmp_path, rights, **more))
        return started[-1]

    yield begin
    for each in started:
        each.worker.process.kill()


def test_the_page_has_a_list():
    assert len(RIGHTS) >= 12
    assert len(set(RIGHTS)) == len(RIGHTS)


def wait_works(run: Cluster) -> None:
    """Wait until both connectors run and have copied all lines."""

    def works() -> bool:
        run.worker.check()
        return run.create() and run.works()

    try:
        wait_until(works, "both connectors to run", SECONDS_MAX, pause_s=0.5)
    except TookTooLong as late:
        raise AssertionError(f"{late}\n{run.worker.process.output()[-6000:]}") from None


def test_connect_works_with_the_listed_rights(broker, begin):
    run = begin(RIGHTS)
    wait_works(run)
    if isinstance(broker, RightsGateway):
        assert run.refusals() == set()
    run.worker.process.stop()


def test_rights_to_create_are_not_needed_for_topics_that_exist(broker, begin):
    creating = [each for each in RIGHTS if each.operation == "create"]
    assert len(creating) == 3
    rights = [each for each in RIGHTS if each not in creating]
    wait_works(begin(rights, existing=[each.name for each in creating]))


def test_without_exactly_once_support_no_transactional_id_is_needed(broker, begin):
    rights = [each for each in RIGHTS if each.kind != "transactional-id"]
    assert len(rights) == len(RIGHTS) - 2
    wait_works(begin(rights, support="disabled"))


@pytest.mark.parametrize("right", RIGHTS, ids=str)
def test_connect_fails_without_a_right(broker, begin, right):
    run = begin([each for each in RIGHTS if each != right])
    missing = run.named.right(right)

    def is_refused() -> bool:
        if missing.refusal().search(run.worker.process.output()):
            return True
        run.create()
        return False

    try:
        wait_until(is_refused, f"a refusal for want of {missing}", SECONDS_MAX, pause_s=0.5)
    except TookTooLong as late:
        raise AssertionError(f"{late}\n{run.worker.process.output()[-6000:]}") from None
    assert not run.works()
    if isinstance(broker, RightsGateway):
        refused = run.refusals()
        assert refused, run.worker.process.output()[-4000:]
        assert all(map(missing.matches, refused)), refused
