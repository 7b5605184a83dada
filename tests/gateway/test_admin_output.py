"""Goal: `gateway group`, `transaction` and `feature` print each result in every form, in one shape.

Method: the commands in this process, against one gateway with a group and an open transaction.
Each JSON value is validated against the schema that is made from the command's shapes.
"""

from __future__ import annotations

import csv
import io
import json

import click
import jsonschema
import pytest
from confluent_kafka import Producer, TopicPartition

from gateway.admin import feature_shapes, group_shapes, transaction_shapes
from gateway.process.cli import program
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

RECORDS = 5


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    broker = Gateway(tmp_path_factory.mktemp("data"), ["--group-initial-rebalance-delay", "0s"])
    with broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        assert invoke("topic", "create", "t", "-p", "2", bootstrap=bootstrap)[0] == 0
        produced(broker, "t", RECORDS)
        idle = consumer(broker, "idle")
        idle.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        idle.close()
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "pay"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"1", partition=1)
        assert producer.flush(60) == 0
        reader = consumer(broker, "busy")
        reader.subscribe(["t"])
        wait_until(lambda: reader.poll(0.1) and reader.assignment(), "an assignment")
        yield broker
        reader.close()
        producer.abort_transaction(30)


@pytest.fixture
def cli(gateway):
    def run(*words, code=0):
        found, out, errors = invoke(*words, bootstrap=f"127.0.0.1:{gateway.port}")
        assert found == code, errors
        return out

    return run


COMMANDS = [
    ("group list", group_shapes.LISTED),
    ("group describe idle", group_shapes.OFFSETS),
    ("group describe busy", group_shapes.OFFSETS),
    ("group describe busy --members", group_shapes.MEMBERS),
    ("group describe busy --state", group_shapes.STATE),
    ("group seek idle --to 99 -t t", group_shapes.MOVED),
    ("group seek new --to earliest -t t", group_shapes.MOVED),
    ("group delete idle --dry-run", group_shapes.WOULD_DELETE),
    ("transaction list", transaction_shapes.LISTED),
    ("transaction describe pay", transaction_shapes.DESCRIBED),
    ("transaction find-hanging", transaction_shapes.FOUND_HANGING),
    ("feature describe", feature_shapes.DESCRIBED),
    ("feature upgrade", feature_shapes.UPGRADED),
    ("feature upgrade --dry-run", feature_shapes.WOULD_BE_UPGRADED),
    ("feature downgrade transaction.version=0 --dry-run", feature_shapes.WOULD_BE_DOWNGRADED),
]
EACH = pytest.mark.parametrize(("line", "shape"), COMMANDS, ids=[line for line, _ in COMMANDS])


def declared(line):
    """The shapes that the command of this line declares."""
    group, command = line.split()[:2]
    found = program.get_command(click.Context(program), group)
    return found.commands[command].callback.shapes


@EACH
def test_every_form_has_the_same_rows_in_the_declared_shape(cli, line, shape):
    value = json.loads(cli(*line.split(), "-o", "json"))
    jsonschema.Draft202012Validator(shape.schema()).validate(value)
    assert shape in declared(line)
    lines = [json.loads(each) for each in cli(*line.split(), "-o", "jsonl").splitlines()]
    assert lines == (value if isinstance(value, list) else [value])

    rows = value[shape.rows] if shape.rows else lines
    heads, *cells = csv.reader(io.StringIO(cli(*line.split(), "-o", "csv")))
    assert heads == [each.key for each in shape.keyed]
    assert [
        {key: read(cell, row[key]) for key, cell in zip(heads, texts, strict=True)}
        for row, texts in zip(rows, cells, strict=True)
    ] == rows


def read(cell, like):
    """The value of a cell of CSV; `like` has its type."""
    if like is None:
        return cell or None
    return cell if isinstance(like, str) else json.loads(cell)


@EACH
def test_chosen_columns_are_printed_alone_and_in_order(cli, line, shape):
    first, second = reversed(shape.keyed[-2:])
    words = (*line.split(), "--columns", f"{first.key},{second.key}")
    heads, *rows = csv.reader(io.StringIO(cli(*words, "-o", "csv")))
    assert heads == [first.key, second.key]
    titles, *lines = cli(*words).splitlines()
    assert titles.split() == [*first.title.split(), *second.title.split()]
    assert len(lines) == len(rows)
    bare = cli(*words, "--no-header").splitlines()
    assert [each.split() for each in bare] == [each.split() for each in lines]


def test_groups_without_members_are_described_with_kafkas_columns(cli):
    blank, heads, row = cli("group", "describe", "idle").splitlines()
    assert blank == ""
    assert heads == (
        "GROUP           TOPIC           PARTITION       CURRENT-OFFSET  LOG-END-OFFSET  LAG"
        "             CONSUMER-ID     HOST            CLIENT-ID"
    )
    assert row.split() == ["idle", "t", "0", "2", "5", "3", "-", "-", "-"]
    wide = cli("group", "describe", "idle", "-o", "wide")
    assert wide.splitlines() == [blank, heads, row]


def test_a_group_without_members_has_no_table_of_them(cli):
    assert cli("group", "describe", "idle", "--members") == ""
    assert cli("group", "describe", "idle", "--members", "--columns", "host") == ""
    assert cli("group", "describe", "idle", "--members", "-o", "json") == "[]\n"


def test_a_wide_plan_of_a_seek_has_its_remarks(cli):
    words = ("group", "seek", "idle", "--to", "99", "-t", "t:0")
    assert "REMARK" not in cli(*words)
    heads, row = cli(*words, "-o", "wide").splitlines()[1:]
    assert heads.endswith("REMARK")
    assert row.endswith("99 is beyond the end")


def test_a_plan_in_csv_is_what_a_seek_reads(cli, tmp_path):
    columns = ("--columns", "topic,partition,new_offset", "-o", "csv", "--no-header")
    plan = cli("group", "seek", "idle", "--to", "4", "-t", "t:0", *columns)
    assert plan == "t,0,4\n"
    (tmp_path / "plan").write_text(plan)
    moved = cli("group", "seek", "idle", "--from-file", str(tmp_path / "plan"), "-o", "json")
    assert [row["new_offset"] for row in json.loads(moved)["offsets"]] == [4]


def test_levels_have_their_names_for_people_and_numbers_for_programs(cli):
    words = ("feature", "describe", "--columns", "feature,finalized", "--no-header")
    assert "metadata.version    4.3-IV0\n" in cli(*words)
    assert "metadata.version,30\n" in cli(*words, "-o", "csv")


VIEWS = {
    (): "group, topic, partition, current_offset, log_end_offset, lag, consumer_id, host, "
    "client_id, blocked",
    ("--members",): (
        "group, consumer_id, group_instance_id, host, client_id, partitions, epoch, "
        "target_partitions"
    ),
    ("--state",): (
        "group, coordinator, assignment_strategy, state, members, group_epoch, assignment_epoch"
    ),
}


@pytest.mark.parametrize("form", ["table", "wide", "csv", "json", "jsonl"])
@pytest.mark.parametrize(
    ("flags", "column"),
    [((), "members"), (("--members",), "lag"), (("--state",), "client_id")],
)
def test_a_column_of_another_view_is_refused_with_those_of_this_one(flags, column, form):
    """Before a request: there is no server."""
    words = ("group", "describe", "g", *flags, "--columns", column, "-o", form)
    code, out, errors = invoke(*words)
    assert (code, out) == (2, "")
    message = f"--columns {column}: this view has no column '{column}'; it has {VIEWS[flags]}"
    if form in ("json", "jsonl"):
        assert json.loads(errors) == {"error": message, "code": "USAGE"}
    else:
        assert errors == f"gateway: {message}\n"
