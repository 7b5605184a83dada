"""Goal: `gateway group seek` and `delete` move what they say, only when told to, and seeks can be
undone. Method: the commands, against one real gateway process.
"""

import json
import struct
import subprocess
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition

from gateway.wire.messages import decode_response, encode_request
from tests.compat.differential.connection import Connection
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

HUGE = "9" * 400 + "d"

JOIN, SYNC, LEAVE = 11, 14, 13
_TOPIC = struct.pack(">h1s", 1, b"t")
NOON_MS = 1_777_636_800_000  # 2026-05-01T12:00:00Z
RECORDS = 10


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    broker = Gateway(tmp_path_factory.mktemp("data"), ["--group-initial-rebalance-delay-ms", "0"])
    with broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        assert invoke("topic", "create", "t", "-p", "2", bootstrap=bootstrap)[0] == 0
        for partition in range(2):
            produced(broker, "t", RECORDS, partition, NOON_MS)
        yield broker


@pytest.fixture
def cli(gateway):
    bootstrap = f"127.0.0.1:{gateway.port}"
    return lambda *words, **more: invoke("group", *words, bootstrap=bootstrap, **more)


@pytest.fixture
def group(gateway, request):
    """A group of this test's own, at offset 4 of both partitions."""
    name = request.node.name.partition("[")[0]
    reader = consumer(gateway, name)
    at = [TopicPartition("t", partition, 4, metadata="mine") for partition in range(2)]
    reader.commit(offsets=at, asynchronous=False)
    reader.close()
    return name


def offsets(cli, group):
    code, out, _ = cli("describe", group, "-o", "json")
    return {row["partition"]: row["current_offset"] for row in json.loads(out)} if not code else {}


def moved(cli, group, *words, **more):
    """The new offsets by partition; the group is there now."""
    code, out, errors = cli("seek", group, *words, "--execute", "-o", "json", **more)
    assert (code, errors) == (0, "")
    told = {row["partition"]: row["new_offset"] for row in json.loads(out)["offsets"]}
    now = offsets(cli, group)
    assert {partition: now.get(partition) for partition in told} == told
    return told


def test_a_seek_shows_what_it_would_do_and_does_nothing(cli, group):
    code, out, errors = cli("seek", group, "--all-topics", "--to-earliest")
    assert code == 0
    assert errors == "Nothing was changed; add --execute to do it.\n"
    heading, *rows = out.split("\n")[1:3]
    assert heading.split() == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"]
    assert rows[0].split() == [group, "t", "0", "4", "0"]
    assert offsets(cli, group) == {0: 4, 1: 4}


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), RECORDS),
        (("--to-current",), 4),
        (("--to-offset", "7"), 7),
        (("--to-offset", "999"), RECORDS),
        (("--shift-by", "-3"), 1),
        (("--shift-by", "-100"), 0),
        (("--to-datetime", "2026-05-01T12:00:05.500"), 6),
        (("--to-datetime", "2026-05-01T14:00:02+02:00"), 2),
        (("--to-datetime", "2027-01-01T00:00:00"), RECORDS),
        (("--by-duration", "P9000D"), 0),
        (("--to", "earliest"), 0),
        (("--to", "latest"), RECORDS),
        (("--to", "current"), 4),
        (("--to", "7"), 7),
        (("--to", "999"), RECORDS),
        (("--to", "-3"), 1),
        (("--to", "+2"), 6),
        (("--to", "-100"), 0),
        (("--to", "2026-05-01T12:00:05.500"), 6),
        (("--to", "2026-05-01T14:00:02+02:00"), 2),
        (("--to", "2027-01-01"), RECORDS),
        (("--to", "P9000D"), 0),
        (("--to", "9000d"), 0),
        (("--to", "-9000d"), 0),
    ],
)
def test_a_group_goes_where_it_is_told_to(cli, group, words, offset):
    assert moved(cli, group, "--topic", "t:1", *words) == {1: offset}


def test_a_seek_says_when_it_cannot_go_as_far(cli, group):
    code, _, errors = cli("seek", group, "-t", "t:0", "--to-offset", "99")
    assert code == 0
    assert "t-0: 99 is beyond the end\n" in errors


def test_a_file_of_lines_or_what_a_seek_printed_says_where_to(cli, group, tmp_path):
    lines = tmp_path / "offsets.csv"
    lines.write_text(f"t,0,3\n{group},t,1,5\n")
    assert moved(cli, group, "--from-file", str(lines)) == {0: 3, 1: 5}
    _, plan, _ = cli("seek", group, "--all-topics", "--to-current", "-o", "json")
    assert moved(cli, group, "--all-topics", "--to-latest") == {0: RECORDS, 1: RECORDS}
    assert moved(cli, group, "--from-file", "-", stdin=plan) == {0: 3, 1: 5}


def test_a_seek_is_undone_and_the_one_before_it_too(cli, group):
    assert moved(cli, group, "--all-topics", "--to-earliest") == {0: 0, 1: 0}
    assert moved(cli, group, "-t", "t:0", "--to-latest") == {0: RECORDS}
    code, out, errors = cli("seek", group, "--undo")
    assert (code, errors) == (0, "Nothing was changed; add --execute to do it.\n")
    assert offsets(cli, group) == {0: RECORDS, 1: 0}
    assert moved(cli, group, "--undo") == {0: 0, 1: 4}
    assert moved(cli, group, "--undo") == {0: 4}
    code, out, errors = cli("seek", group, "--undo")
    assert (code, out) == (1, "")
    assert "There is no seek of group" in errors
    assert "restore --at" in errors


def test_undoing_gives_back_the_metadata_of_the_commit(cli, group, gateway):
    moved(cli, group, "--all-topics", "--to-earliest")
    moved(cli, group, "--undo")
    reader = consumer(gateway, group)
    (found,) = reader.committed([TopicPartition("t", 0)], timeout=60)
    reader.close()
    assert (found.offset, found.metadata) == (4, "mine")


def test_a_seek_makes_a_group_and_undoing_it_takes_its_offsets_away(cli):
    assert moved(cli, "fresh", "-t", "t", "--to-earliest") == {0: 0, 1: 0}
    code, out, _ = cli("seek", "fresh", "--undo", "--execute", "-o", "json")
    assert code == 0
    assert [row["new_offset"] for row in json.loads(out)["offsets"]] == [None, None]
    assert offsets(cli, "fresh") == {}


def test_what_consumers_committed_after_a_seek_is_not_undone(cli, group, gateway):
    moved(cli, group, "--all-topics", "--to-earliest")
    reader = consumer(gateway, group)
    reader.commit(offsets=[TopicPartition("t", 0, 6)], asynchronous=False)
    reader.close()
    assert moved(cli, group, "--undo") == {1: 4}
    assert offsets(cli, group) == {0: 6, 1: 4}


def test_a_group_with_members_is_neither_moved_nor_deleted(cli, group, gateway):
    reader = consumer(gateway, group)
    try:
        reader.subscribe(["t"])
        wait_until(lambda: reader.poll(0.1) and reader.assignment(), "an assignment")
        for words in (("--all-topics", "--to-latest"), ("--undo",)):
            code, out, errors = cli("seek", group, *words, "--execute")
            assert (code, out) == (1, "")
            assert "while group" in errors
            assert "is inactive, but its state is Stable" in errors
        code, _, errors = cli("delete", group, "--yes")
        assert code == 1
        assert "stop its consumers first" in errors
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("-t", "none", "--to-latest"), "Topic 'none' does not exist; see `gateway topic list`"),
        (("-t", "t:7", "--to-latest"), "Topic 't' has no partition 7; it has 2."),
        (("-t", "t", "--shift-by", "1"), "Cannot shift t-0: nothing is committed for it"),
        (
            ("--all-topics", "--to-latest"),
            "Consumer group 'nobody' does not exist; see `gateway group list`",
        ),
        (("--undo",), "Consumer group 'nobody' does not exist; see `gateway group list`"),
    ],
)
def test_a_move_that_cannot_be_made_says_why(cli, words, fault):
    code, out, errors = cli("seek", "nobody", *words, "--execute")
    assert (code, out) == (1, "")
    assert fault in errors


def test_a_group_is_deleted_with_its_offsets_once_that_is_wanted(cli, group):
    code, out, _ = cli("delete", group, "--dry-run", "-o", "json")
    assert code == 0
    shown = json.loads(out)
    assert shown["would_delete"] == group
    assert [row["current_offset"] for row in shown["offsets"]] == [4, 4]
    assert cli("delete", group, "--yes") == (0, f"Deleted group {group}.\n", "")
    code, _, errors = cli("delete", group, "--yes", "-o", "json")
    assert code == 1
    assert json.loads(errors)["code"] == "GROUP_ID_NOT_FOUND"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("delete", "g"), "add --yes to delete, or --dry-run to list the offsets"),
        (("delete", "g", "--yes", "--dry-run"), "--yes and --dry-run: pass only one of them"),
        (("describe", "g", "--state", "--members"), "--members and --state: pass only one of"),
        (("seek", "g", "--all-topics"), "pass one of --to, --from-file and --undo"),
        (("seek", "g", "--to-latest", "--to-earliest"), "one of --to, --from-file and --undo"),
        (("seek", "g", "--to", "latest", "--undo"), "one of --to, --from-file and --undo"),
        (("seek", "g", "--to", "latest", "--to", "earliest"), "and only one position"),
        (
            ("seek", "g", "-t", "a", "--to", "noon"),
            "'noon' is not a position: pass earliest",
        ),
        (("seek", "g", "-t", "a", "--to", "1y"), "'1y' is not a position"),
        (("seek", "g", "-t", "a", "--to", "+1h"), "'+1h' is not a position"),
        (("seek", "g", "--to-latest"), "name the partitions by --topic or by --all-topics"),
        (("seek", "g", "-t", "a:x", "--to-latest"), "'a:x' is not a topic"),
        (("seek", "g", "-t", "a", "--to-datetime", "noon"), "'noon' is not a time"),
        (("seek", "g", "-t", "a", "--by-duration", "1y"), "'1y' is not a duration"),
        (("seek", "g", "-t", "a", "--by-duration", HUGE), "d' is longer than 3650000d"),
        (("seek", "g", "-t", "a", "--to", HUGE), "d' is longer than 3650000d"),
        (("history", "g", "--since", HUGE), "d' is longer than 3650000d"),
        (("restore", "g", "--at", HUGE), "d' is longer than 3650000d"),
        (("seek", "g", "-t", "a", "--to=-2026-05-01"), "'-2026-05-01' is not a position"),
        (("seek", "g", "--from-file", "/none"), "No such file or directory"),
        (("seek", "g", "--undo", "--execute", "--dry-run"), "pass only one of them"),
        (("restore", "g", "--at", "x"), "or how long ago, for example 2h"),
        (("history", "g", "-z", "nowhere"), "must be host:port"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_word(words, hint):
    code, out, errors = invoke("group", *words)
    assert (code, out) == (2, "")
    assert hint in errors


@pytest.mark.parametrize(
    "words",
    [
        ("seek", "g", "--all-topics", "--to-latest"),
        ("seek", "g", "--all-topics", "--to-offset", "0"),
        ("seek", "g", "--all-topics", "--shift-by", "0"),
        ("delete", "g", "--yes"),
        ("history", "g", "-z", "127.0.0.1:1"),
        ("restore", "g", "--at", "2h", "-z", "127.0.0.1:1"),
    ],
)
def test_without_a_server_one_line_says_so(words, monkeypatch):
    monkeypatch.setattr("gateway.admin.storage._CONNECT_S", 0.2)
    code, out, errors = invoke("group", *words)
    assert (code, out) == (69, "")
    assert errors.count("\n") == 1


@contextmanager
def assigning(gateway, group, assignment):
    """A group whose only member chose these bytes as its assignment."""
    connection = Connection(("127.0.0.1", gateway.port))

    def ask(key, version, **fields):
        connection.send(encode_request(key, version, 7, None, fields))
        answer = decode_response(key, version, connection.receive()).body
        assert not answer.error_code.value
        return answer

    protocol = {"name": "range", "metadata": b""}
    joined = ask(
        JOIN,
        2,
        group_id=group,
        session_timeout=30_000,
        rebalance_timeout=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    member = {"member_id": joined.member_id, "assignment": assignment}
    ask(
        SYNC,
        1,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[member],
    )
    try:
        yield
    finally:
        ask(LEAVE, 1, group_id=group, member_id=joined.member_id)
        connection.close()


@pytest.mark.parametrize("flags", [(), ("--members",)])
@pytest.mark.parametrize(
    "assignment",
    [
        struct.pack(">hi", 0, 2**31 - 1) + b"\0\0",
        struct.pack(">hi", 0, 1) + _TOPIC + struct.pack(">i", 2**31 - 1),
    ],
    ids=["topics", "partitions"],
)
def test_an_assignment_that_declares_billions_of_elements_ends_no_command(
    gateway, assignment, flags
):
    """The decoder allocates by the count, and aborts the process if there is no such memory."""
    words = (install.gateway_python(), "-m", "gateway", "group", "describe", "declared", *flags)
    limited = ("sh", "-c", 'ulimit -v 4000000 && exec "$@"', "sh", *words)
    with assigning(gateway, "declared", assignment):
        done = subprocess.run(
            (*limited, "-b", f"127.0.0.1:{gateway.port}"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[-1] for line in done.stdout.splitlines()[2:]] == (["0"] if flags else [])


def test_a_group_id_forges_no_row_and_reaches_no_terminal(cli, gateway):
    name = "a\nforged Stable\x1b[2J\x9b2J"
    with assigning(gateway, name, b""):
        _, table, _ = cli("list")
        assert table.replace("\n", "").isprintable()
        assert [line for line in table.splitlines() if line.startswith("forged")] == []
        assert r"a\nforged Stable\x1b[2J\x9b2J" in table
        _, text, _ = cli("list", "-o", "json")
        assert text.replace("\n", "").isprintable()
        assert name in [row["group"] for row in json.loads(text)]
