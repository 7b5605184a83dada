"""Goal: `topic produce -i avro`, `topic consume --value avro` and `--where` work as users run them.

Method: the commands in processes of their own against a gateway, with a registry over HTTP;
librdkafka and fastavro read what was written. The run environment has neither extra.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import BytesIO

import fastavro
import pytest

from tests.gateway.admin_commands import invoke, run
from tests.gateway.produce_command import created, values
from tests.gateway.schema_registry import serving
from tests.peers import install
from tests.peers.gateway import Gateway

pytestmark = pytest.mark.compat
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
    ],
}
LINES = b'{"id": 1, "who": "ann"}\n{"id": 200}\n'
SHOWN = b'{"id": 1, "who": "ann"}\n{"id": 200, "who": null}\n'


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "order.avsc"
    path.write_text(json.dumps(ORDER))
    return str(path)


def command(broker, *words, data=b""):
    """Exit code, stdout and stderr with an interpreter that has the extras."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "topic", *words],
        env={**os.environ, "GATEWAY_BOOTSTRAP": broker.bootstrap},
        input=data,
        capture_output=True,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr.decode()


def test_avro_by_a_file_is_written_and_read(broker, schema):
    topic = created(broker)
    words = ("-i", "avro", "--schema", schema)
    assert command(broker, "produce", topic, *words, data=LINES)[0] == 0
    parsed = fastavro.parse_schema(ORDER)
    read = [fastavro.schemaless_reader(BytesIO(x), parsed, None) for x in values(broker, topic)]
    assert read == [{"id": 1, "who": "ann"}, {"id": 200, "who": None}]
    shown = command(broker, "consume", topic, "--value", "avro", "--schema", schema)
    assert shown == (0, SHOWN, "")
    code, out, errors = command(
        broker, "produce", topic, *words, data=b'{"id": 3}\n{"id": "x"}\n{"id": 4}\n'
    )
    assert (code, out) == (65, f"wrote 1 record to {topic}\n".encode())
    assert errors == "gateway: line 2: `id` must be long, not 'x'\n"


def test_avro_by_a_registry_is_written_filtered_and_read(broker, schema):
    topic = created(broker)
    with serving() as registry:
        by = ("--schema-registry", registry.url.replace("//", "//ann:secret@"))
        code, _, errors = command(broker, "produce", topic, "-i", "avro", *by, data=LINES)
        assert (code, "secret" in errors) == (1, False)
        assert f"has no /subjects/{topic}-value/versions/latest" in errors
        words = ("produce", topic, "-i", "avro", *by)
        assert command(broker, *words, "--schema", schema, data=LINES)[0] == 0
        assert command(broker, *words, data=LINES)[0] == 0
        assert [each[:5] for each in values(broker, topic)] == [b"\0\0\0\0\1"] * 4
        assert command(broker, "consume", topic, "--value", "avro", *by) == (0, 2 * SHOWN, "")
        words = ("consume", topic, "--value", "avro", *by, "--where", "value.id > 100", "-n", "1")
        found = command(broker, *words, "-f", "%o {value.id} {value[who]}|")
        assert found == (0, b"1 200 |", "")
        group = command(broker, *words[:-2], "-g", "readers", "-f", "%o ")
        assert group == (0, b"1 3 ", "")
        assert command(broker, "produce", topic, data=b"text\n")[0] == 0
        code, out, errors = command(broker, "consume", topic, "--value", "avro", *by)
        assert (code, out) == (65, 2 * SHOWN)
        assert errors.startswith(f"gateway: {topic}/0@4: the value does not begin with")
        assert command(broker, "consume", topic, "--value", "auto", *by)[1] == 2 * SHOWN + b"text\n"
        out = command(broker, "consume", topic, "--value", "avro", *by, "-n1", "-o", "jsonl")[1]
        assert json.loads(json.loads(out)["value"]) == {"id": 1, "who": "ann"}
    code, _, errors = command(broker, "consume", topic, "--value", "avro", *by)
    assert (code, "secret" in errors, errors.count("\n")) == (69, False, 1)


def test_an_avro_file_is_written_record_by_record(broker, schema, tmp_path):
    topic = created(broker)
    with open(tmp_path / "orders.avro", "wb") as file:
        orders = [{"id": at, "who": None} for at in range(2000)]
        fastavro.writer(file, ORDER, orders, codec="deflate", sync_interval=500)
    path = str(tmp_path / "orders.avro")
    assert command(broker, "produce", topic, "-i", "avro", path)[0] == 0
    code, out, _ = command(broker, "consume", topic, "--value", "avro", "--schema", schema)
    assert (code, [json.loads(line) for line in out.splitlines()]) == (0, orders)
    begin = (tmp_path / "orders.avro").read_bytes()[:-100]
    code, _, errors = command(broker, "produce", topic, "-i", "avro", "--skip-bad", data=begin)
    assert code == 65
    assert errors.endswith("not an Avro file: the file ends within a block\n")


def test_where_counts_what_failed_and_refuses_a_bad_expression(broker):
    topic = created(broker)
    assert command(broker, "produce", topic, data=b'{"total": 120}\n{}\n{"total": 5}\n')[0] == 0
    code, out, errors = command(broker, "consume", topic, "--where", "value.total > 100")
    assert (code, out) == (0, b'{"total": 120}\n')
    assert errors == (
        "--where failed for 1 record, not printed; "
        f"the first is {topic}/0@1: no such key: 'total'\n"
    )
    for expression, reason in [
        ("value.total >", "--where: column 14: mismatched input '<EOF>'"),
        ("value.total", f"--where: {topic}/0@0: the result is 120, not true or false"),
    ]:
        code, out, errors = command(broker, "consume", topic, "--where", expression)
        assert (code, out, errors.startswith(f"gateway: {reason}")) == (2, b"", True), errors


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("consume", "t", "--value", "avro"), "--value avro needs --schema FILE or"),
        (("consume", "t", "--schema", "x.avsc"), "--schema needs --value avro"),
        (("consume", "t", "--value", "avro", "--schema", "/none"), "--schema /none: No such file"),
        (("produce", "t", "--schema", "x.avsc"), "--schema needs --input avro"),
        (("produce", "t", "-i", "avro", "--schema-id", "1"), "--schema-id needs --schema-registry"),
        (("produce", "t", "-i", "avro", "--tombstone"), "--tombstone and --input avro"),
        (
            ("produce", "t", "-i", "avro", "--schema-registry", "ftp://ann:secret@a"),
            "--schema-registry: must be http://host:port or https://host:port",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(words, reason):
    code, out, errors = invoke("topic", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert reason in errors
    assert "secret" not in errors


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("produce", "t", "-i", "avro"), "fastavro"),
        (("consume", "t", "--value", "auto", "--schema-registry", "http://a"), "fastavro"),
        (("consume", "t", "--where", "true"), "common-expression-language"),
    ],
)
def test_a_missing_package_is_named_with_the_interpreter_that_lacks_it(words, package):
    code, _, errors = run("topic", *words)
    assert (code, errors.count("\n")) == (2, 1)
    assert f"{install.gateway_python()} -m pip install '{package}>=" in errors
