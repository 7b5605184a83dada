"""The language of cases: a function builds the steps of one case for one version.

```python
KEY = 20

@case(KEY, since=6)
def by_an_unknown_id(script: Script) -> None:
    script.ask(topics=[{"name": None, "topic_id": UUID(int=7)}], timeout=5_000)
```

The function runs without a server. A value that the server chooses comes from an earlier answer:
`script.ask(...).take("topics[0].topic_id")`. All names come from `script.name`, so cases neither
share topics nor groups and may run in any order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gateway.handlers.table import rows
from tests.compat.differential.steps import Batch, Step, Taken
from tests.compat.differential.transactions import VERSIONS

PRODUCE, LIST_OFFSETS, METADATA, FIND_COORDINATOR = 0, 2, 3, 10
OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP, DESCRIBE_GROUPS = 8, 11, 14, 15
CREATE_TOPICS, INIT_PRODUCER_ID = 19, 22
NOT_YET = (
    "unknown_topic_or_partition",
    "leader_not_available",
    "not_leader_or_follower",
    "coordinator_load_in_progress",
    "coordinator_not_available",
    "not_coordinator",
)
"""Errors of a topic or group that was just created, in Kafka and in a cluster of gateways."""

CONSUMER_OFFSETS = "__consumer_offsets"

Build = Callable[["Script"], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a step, as far as it is known before a server runs: its number."""

    step: int

    def take(self, path: str) -> Taken:
        """Return a placeholder of the field at `path`, for use in later requests."""
        return Taken(self.step, path)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that a case created."""

    name: str
    topic_id: Taken

    @property
    def ref(self) -> dict[str, Any]:
        """Name and id for a row of a request; each version takes the one that it has."""
        return {"name": self.name, "topic": self.name, "topic_id": self.topic_id}


class Member(NamedTuple):
    """A member that a case let join: its group, id and generation."""

    group: str
    member_id: Taken
    generation: Taken


@dataclass(frozen=True, slots=True)
class Case:
    """One case in one version of its API."""

    name: str
    key: int
    version: int
    build: Build
    transactions: bool = False
    """Whether it is about an API's part in transactions."""

    def steps(self) -> list[Step]:
        script = Script(self)
        self.build(script)
        return script.steps


class Script:
    """Collects the steps of one case. Each method appends steps; nothing is sent yet."""

    def __init__(self, its_case: Case) -> None:
        self.key = its_case.key
        self.version = its_case.version
        letter = _letter(its_case.transactions)
        self.prefix = f"{letter}{its_case.key:02}-v{its_case.version}-{its_case.name}--"
        self.steps: list[Step] = []
        self._published = 0  # topics that `published` created
        # Batches of cases are old, markers are not. Kafka would begin a segment between them, and
        # a fetch of Kafka's ends with its segment.
        self._configs = {"segment.ms": str(1 << 62)} if its_case.transactions else {}

    def name(self, word: str) -> str:
        """Return a name for a topic or group, which no other case uses."""
        return self.prefix + word

    # -- requests ---------------------------------------------------------------------------------

    def ask(self, *, on: str = "a", reads: int = -1, **fields: Any) -> Answer:
        """Send a request of the key and version under test; its answer is compared."""
        return self._add(Step("ask", self.key, self.version, fields, connection=on, reads=reads))

    def ask_all(self, *, on: str = "a", **fields: Any) -> Answer:
        """As `ask`, for an answer that lists everything: the rows of other cases are left out."""
        step = Step("ask", self.key, self.version, fields, connection=on, own=self.prefix)
        return self._add(step)

    def other(self, key: int, version: int, *, on: str = "a", **fields: Any) -> Answer:
        """Send a request of another key or version; its answer is compared too."""
        return self._add(Step("ask", key, version, fields, connection=on))

    def settled(self, answer: Answer, errors: Sequence[str] = NOT_YET) -> Answer:
        """Let a step ask again while its answer contains one of `errors`, until the last answer."""
        step = dataclasses.replace(self.steps[answer.step], again=tuple(errors))
        self.steps[answer.step] = step
        return answer

    def raw(
        self,
        body: bytes,
        *,
        flexible: bool,
        on: str = "a",
        version: int | None = None,
        reads: int = -1,
    ) -> Answer:
        """Send these bytes behind a request header; the answer or its absence is compared."""
        wanted = self.version if version is None else version
        return self._add(
            Step("ask", self.key, wanted, body, flexible=flexible, connection=on, reads=reads)
        )

    def send(self, *, on: str = "a", **fields: Any) -> Answer:
        """Send a request; `receive` reads its answer, and a request without answer needs none."""
        return self._add(Step("send", self.key, self.version, fields, connection=on))

    def send_other(self, key: int, version: int, *, on: str = "a", **fields: Any) -> Answer:
        """As `send`, of another key or version."""
        return self._add(Step("send", key, version, fields, connection=on))

    def receive(self, sent: Answer) -> Answer:
        """Read the answer of a `send`; it is compared."""
        of = self.steps[sent.step]
        step = Step(
            "receive", of.key, of.version, connection=of.connection, of=sent.step, reads=of.reads
        )
        return self._add(step)

    def expect_close(self, *, on: str = "a") -> None:
        """Wait until the server has closed the connection."""
        self._add(Step("expect_close", connection=on))

    def drop(self, *, on: str = "a") -> None:
        """Close the connection; a later step opens another one."""
        self._add(Step("drop", connection=on))

    # -- preparations, which are not compared -----------------------------------------------------

    def prepare(
        self,
        key: int,
        version: int,
        *,
        on: str = "a",
        again: Sequence[str] = NOT_YET,
        **fields: Any,
    ) -> Answer:
        """Send a request whose answer is not compared, until it has none of the errors `again`."""
        step = Step("ask", key, version, fields, connection=on, again=tuple(again), compared=False)
        return self._add(step)

    def topic(self, word: str, partitions: int = 1, configs: dict[str, str] | None = None) -> Topic:
        """Create a topic and wait until the leaders of its partitions answer."""
        name = self.name(word)
        configs = {**self._configs, **(configs or {})}
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": each, "value": value} for each, value in configs.items()],
        }
        created = self.prepare(CREATE_TOPICS, 7, topics=[wanted], timeout=10_000, again=())
        self.wait_led(name)
        rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        self.prepare(LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": name, "partitions": rows}])
        return Topic(name, created.take("topics[0].topic_id"))

    def wait_led(self, name: str) -> Answer:
        """Wait until Metadata reports the leaders of a topic."""
        return self.prepare(METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=False)

    def published(self) -> None:
        """Wait until Kafka's broker has applied the changes that its controller has answered."""
        self._published += 1
        self.topic(f"published-{self._published}")

    def node(self) -> Taken:
        """Return the node id of a broker."""
        answer = self.other(METADATA, 12, topics=[], allow_auto_topic_creation=False)
        return answer.take("brokers[0].node_id")

    def fill(self, topic: Topic, count: int, partition: int = 0, **header: Any) -> Answer:
        """Append one batch of `count` records, a millisecond apart."""
        return self.prepare(
            PRODUCE,
            13,
            acks=-1,
            timeout=10_000,
            topic_data=[
                {
                    "topic_id": topic.topic_id,
                    "partition_data": [{"index": partition, "records": batch(count, **header)}],
                }
            ],
        )

    def coordinator(self, group: str) -> Answer:
        """Wait until the coordinator of a group is known and answers."""
        found = self.prepare(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
        self.prepare(DESCRIBE_GROUPS, 5, groups=[group])
        return found

    def internal_topic(self) -> Topic:
        """Wait until the internal topic of groups exists."""
        self.coordinator(self.name("group"))
        found = self.wait_led(CONSUMER_OFFSETS)
        return Topic(CONSUMER_OFFSETS, found.take("topics[0].topic_id"))

    def producer(self) -> Answer:
        """Allocate a producer id; take `producer_id` from the answer."""
        return self.prepare(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=60_000)

    def commit(self, group: str, topic: Topic, offset: int, note: str = "") -> Answer:
        """Commit an offset of partition 0 without a member."""
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": note}
        return self.prepare(
            OFFSET_COMMIT,
            9,
            group_id=group,
            member_id="",
            generation_id_or_member_epoch=-1,
            topics=[{"name": topic.name, "partitions": [row]}],
        )

    def member(self, **fields: Any) -> Member:
        """Join a group of the case as its only member, with fields of `join`."""
        group = self.name("group")
        joined = self.join(group, **fields)
        return Member(group, joined.take("member_id"), joined.take("generation_id"))

    def join(
        self, group: str, *, on: str = "a", protocols: Sequence[str] = ("range",), **fields: Any
    ) -> Answer:
        """Join a group as its only member, with an assignment; take `member_id` from the answer."""
        self.coordinator(group)
        wanted = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": "consumer",
            "protocols": [{"name": each, "metadata": b"meta"} for each in protocols],
            **fields,
        }
        first = self.prepare(JOIN_GROUP, 9, on=on, member_id="", **wanted)
        member = first.take("member_id")
        if wanted.get("group_instance_id") is None:
            first = self.prepare(JOIN_GROUP, 9, on=on, member_id=member, **wanted)
        self.prepare(
            SYNC_GROUP,
            5,
            on=on,
            group_id=group,
            generation_id=first.take("generation_id"),
            member_id=member,
            group_instance_id=wanted.get("group_instance_id"),
            protocol_type="consumer",
            protocol_name=protocols[0],
            assignments=[{"member_id": member, "assignment": b"share"}],
        )
        return first

    def _add(self, step: Step) -> Answer:
        self.steps.append(step)
        return Answer(len(self.steps) - 1)


def batch(count: int, /, *, gap_ms: int = 1, key: bytes | None = b"key", **header: Any) -> Batch:
    """Return a batch of `count` records, `gap_ms` apart; `header` as for `raw_batch`."""
    records = tuple((at * gap_ms, key, b"value-%d" % at) for at in range(count))
    return Batch(records, header)


# -- all cases ------------------------------------------------------------------------------------

_registered: dict[tuple[int, bool], dict[str, tuple[Build, int, int]]] = {}


def case(
    key: int, *, since: int = 0, until: int = 99, transactions: bool = False
) -> Callable[[Build], Build]:
    """Register a case for every advertised version of the API between `since` and `until`."""

    def register(build: Build) -> Build:
        name = build.__name__.strip("_").replace("_", "-")
        known = _registered.setdefault((key, transactions), {})
        assert name not in known, f"two cases of key {key} are called {name}"
        known[name] = (build, since, until)
        return build

    return register


def _letter(transactions: bool) -> str:
    """Return the letter with which names of files, topics and groups begin."""
    return "t" if transactions else "k"


def case_files(transactions: bool = False) -> dict[int, str]:
    """Return the modules with cases by API key, from the names of the files."""
    pattern = f"{_letter(transactions)}[0-9][0-9]_*.py"
    found = sorted(Path(__file__).with_name("cases").glob(pattern))
    return {int(path.stem[1:3]): path.stem for path in found}


@cache
def cases_of(key: int, transactions: bool = False) -> tuple[Case, ...]:
    """Return the cases of an API in all versions, in a fixed order.

    The versions are those that the gateway advertises; with transactions, those of Kafka.
    """
    files = case_files(transactions)
    if key not in files:
        return ()
    import_module(f"tests.compat.differential.cases.{files[key]}")
    return tuple(_in_versions(key, transactions))


def _in_versions(key: int, transactions: bool) -> Iterable[Case]:
    api = None if transactions else rows()[key]
    for version in VERSIONS[key] if api is None else api.advertised or api.versions:
        known = _registered.get((key, transactions), {})
        for name, (build, since, until) in known.items():
            if since <= version <= until:
                yield Case(name, key, version, build, transactions)
