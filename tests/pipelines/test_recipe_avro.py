"""Goal: the recipe for Avro decodes records by the registry's schemas, and drops none in silence.

Method: a real registry that keeps its schemas in topics of the gateway; values encoded here byte by
byte. The program of docs/spark.md runs as written except for ports, topic and directory. pyarrow
reads its files. Planted mistakes must change the rows, or end the program.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.gateway import Gateway
from tests.peers.recipes import RUN_S_MAX, RecipeRun, documented, shown
from tests.peers.registry import Registry

pytestmark = [pytest.mark.spark, pytest.mark.proof, pytest.mark.timeout(3600)]

KIND = "python with Avro"
FLIGHTS = 1000
UNKNOWN = 987_654_321
SCHEMAS_MAX = 100  # of the program
OLD = [{"name": "flight", "type": "long"}, {"name": "miles", "type": "long"}]
NEW = [
    {"name": "flight", "type": "long"},
    {"name": "carrier", "type": ["null", "string"], "default": None},
]
OTHER = [{"name": "airport", "type": "string"}]


def record(fields: object) -> dict[str, object]:
    return {"type": "record", "name": "Flight", "fields": fields}


def number(value: int) -> bytes:
    """Encode a long: zigzag, seven bits in each byte, the lowest first."""
    rest, encoded = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def string(text: str) -> bytes:
    return number(len(text.encode())) + text.encode()


def framed(schema: int, body: bytes) -> bytes:
    return b"\x00" + schema.to_bytes(4, "big") + body


class Expected(NamedTuple):
    """The expected output for a record: its problem, or its row."""

    problem: str | None
    row: dict[str, Any] | None


def decoded(flight: int, miles: int | None, carrier: str | None) -> Expected:
    row = {"flight": flight, "miles": miles, "carrier": carrier, "decoded": True}
    return Expected(None, row)


class World:
    """The topics, with what the program should write for each record, by topic and offset."""

    def __init__(self, gateway: Gateway, registry: Registry) -> None:
        self.gateway, self.registry = gateway, registry
        self.values: dict[str, list[bytes | None]] = {"flights-avro": [], "many": []}
        self.expected: dict[str, list[Expected]] = {"flights-avro": [], "many": []}
        self._make_flights()
        self._make_many()
        admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
        producer = Producer({"bootstrap.servers": gateway.bootstrap})
        for topic, values in self.values.items():
            admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
            for value in values:
                producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0

    def _add(self, topic: str, value: bytes | None, expected: Expected) -> None:
        self.values[topic].append(value)
        self.expected[topic].append(expected)

    def _make_flights(self) -> None:
        old = self.registry.register("flights", record(OLD))
        new = self.registry.register("flights-new", record(NEW))
        other = self.registry.register("airports", record(OTHER))
        for each in range(FLIGHTS // 2):
            body = number(each) + number(each * 3)
            self._add("flights-avro", framed(old, body), decoded(each, each * 3, None))
            carrier = None if each % 3 else f"carrier {each}"
            body = number(-each) + (
                number(0) if each % 3 else number(1) + string(f"carrier {each}")
            )
            self._add("flights-avro", framed(new, body), decoded(-each, None, carrier))
        huge = number(1) + number(1) + number(2**30) + b"short"
        bad: list[tuple[bytes | None, str]] = [
            (framed(new, huge), "does not decode"),
            (framed(old, number(300)[:1]), "does not decode"),
            (framed(other, string("JFK")), "does not decode"),
            (None, "no value"),
            (b"\x00\x00\x00", "not in the registry's format"),
            (b"\x01" + framed(old, number(1) + number(2))[1:], "not in the registry's format"),
            (framed(UNKNOWN, number(1) + number(2)), "unknown schema"),
        ]
        for value, problem in bad:
            self._add("flights-avro", value, Expected(problem, None))

    def _make_many(self) -> None:
        """Make more schemas than the program takes at once, with one record each."""
        for each in range(SCHEMAS_MAX + 3):
            fields = [*OLD, {"name": f"more{each}", "type": "long", "default": 0}]
            schema = self.registry.register(f"many-{each}", record(fields))
            good = decoded(each, 1, None)
            late = Expected("too many schemas in one batch", None)
            body = number(each) + number(1) + number(0)
            self._add("many", framed(schema, body), good if each < SCHEMAS_MAX else late)

    def program(self, place: Path, changes: Mapping[str, str] | None = None) -> str:
        """Return the program, with its files below `place`."""
        text = documented(KIND)
        real = {
            "127.0.0.1:9092": self.gateway.bootstrap,
            "127.0.0.1:8081": f"127.0.0.1:{self.registry.port}",
            "data/avro": str(place),
        }
        for before, after in {**real, **(changes or {})}.items():
            assert before in text, before
            text = text.replace(before, after)
        return text

    def differences(self, place: Path, topic: str = "flights-avro") -> Counter[tuple[Any, Any]]:
        """Compare the rows with the expected ones. Returns pairs of problems, with their count."""
        table = pyarrow.dataset.dataset(place / "rows", exclude_invalid_files=True).to_table()
        rows = {each["offset"]: each for each in table.to_pylist()}
        assert len(rows) == table.num_rows == len(self.values[topic])
        wrong: Counter[tuple[Any, Any]] = Counter()
        for offset, (value, expected) in enumerate(
            zip(self.values[topic], self.expected[topic], strict=True)
        ):
            row = rows[offset]
            kept = None if expected.problem is None else value
            is_same = (row["problem"], row["value"]) == (expected.problem, kept)
            if not is_same or (expected.row is not None and row["row"] != expected.row):
                wrong[expected.problem, row["problem"]] += 1
        return wrong


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    work = tmp_path_factory.mktemp("world")
    with (
        Gateway(work / "gateway", ("--journal-sync", "never")) as gateway,
        Registry(work / "registry", gateway.bootstrap) as registry,
    ):
        yield World(gateway, registry)


class Loading(BaseHTTPRequestHandler):
    """A registry that has not read its schemas yet; Apicurio Registry answers so for seconds."""

    def do_GET(self) -> None:
        loading = self.path == "/health/ready"
        body = b"{}" if loading else b'{"message":"No content with this ID","error_code":40403}'
        self.send_response(503 if loading else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def loading() -> Iterator[str]:
    """The address of a registry that loads."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Loading) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(work: Path, programs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    with RecipeRun(work, programs) as started:
        return started.results()


WRONG_PATH = {"/apis/ccompat/v7": "/apis/ccompat/none"}


def test_every_record_is_a_row_or_has_a_problem(world: World, tmp_path: Path, loading: str) -> None:
    loads = {f"127.0.0.1:{world.registry.port}": loading}
    programs = {
        "written": world.program(tmp_path / "written"),
        "wrong path": world.program(tmp_path / "wrong path", WRONG_PATH),
        "loading": world.program(tmp_path / "loading", loads),
        "many": world.program(tmp_path / "many", {"flights-avro": "many"}),
    }
    results = run(tmp_path / "run", programs)
    assert not results["written"]["error"], results["written"]["error"]
    assert results["written"]["printed"] == shown(KIND)
    assert world.differences(tmp_path / "written") == {}
    assert "HTTP Error 404" in results["wrong path"]["error"], results
    assert "HTTP Error 503" in results["loading"]["error"], results
    assert not any((tmp_path / name / "rows").exists() for name in ("wrong path", "loading"))
    assert not results["many"]["error"], results["many"]["error"]
    assert world.differences(tmp_path / "many", "many") == {}
    assert results["many"]["schemas"] == SCHEMAS_MAX


def test_a_registry_that_is_away_fails_the_batch_and_the_next_run_repeats_it(
    world: World, tmp_path: Path
) -> None:
    programs = {"away": world.program(tmp_path / "away")}
    world.registry.kill()
    try:
        error = run(tmp_path / "without", programs)["away"]["error"]
    finally:
        world.registry.start()
    assert "Connection refused" in error, error
    assert not (tmp_path / "away" / "rows").exists()
    error = run(tmp_path / "with", programs)["away"]["error"]
    assert not error, error
    assert world.differences(tmp_path / "away") == {}


def test_planted_mistakes_are_found(world: World, tmp_path: Path, loading: str) -> None:
    any_error = {'if error.code == 404 and b"40403" in error.read():': "if True:"}
    not_asked = {"urllib.request.urlopen(READY, timeout=60).close()": "pass"}
    loads = {f"127.0.0.1:{world.registry.port}": loading}
    no_default = {'F.col("row.decoded")': 'F.col("row").isNotNull()'}
    programs = {
        "any error is unknown": world.program(tmp_path / "any", {**any_error, **WRONG_PATH}),
        "readiness is not asked": world.program(tmp_path / "loads", {**not_asked, **loads}),
        "nulls count as rows": world.program(tmp_path / "nulls", no_default),
    }
    results = run(tmp_path / "run", programs)
    assert not [each["error"] for each in results.values() if each["error"]]
    assert world.differences(tmp_path / "any")[None, "unknown schema"] == FLIGHTS
    assert world.differences(tmp_path / "loads")[None, "unknown schema"] == FLIGHTS
    assert world.differences(tmp_path / "nulls") == {("does not decode", None): 3}


def test_without_limits_a_damaged_length_ends_the_program(world: World, tmp_path: Path) -> None:
    text = world.program(tmp_path / "free", {"maxLength=1000000": "unused=1"})
    with RecipeRun(tmp_path / "run", {"free": text}) as started:
        code = started.wait_exit(RUN_S_MAX, pause_s=0.1)
    log = (tmp_path / "run" / "spark.log").read_text()
    assert "java.lang.OutOfMemoryError" in log, (code, log[-4000:])
    assert not (tmp_path / "free" / "rows" / "batch=0" / "_SUCCESS").exists()
