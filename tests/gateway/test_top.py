"""Goal: `gateway top` shows what is busy, on any screen, and leaves the terminal as it was.

Method: the picture is drawn of made-up looks for several sizes; then the command runs beside a
gateway process: once, as JSON, and on a terminal of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

import pytest

from gateway.admin.top_figures import growth, lag_of
from gateway.admin.top_view import Part, picture, shares
from ledger.command_line.terminal import text_width
from tests.command_output import check_output
from tests.gateway.admin_commands import consumer, heeding, invoke, produced, run
from tests.house import ROOT
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka
from tests.peers.processes import Process, wait_until

SIZES = [(80, 24), (40, 24), (40, 10), (20, 5), (3, 2), (1, 1), (300, 100)]
HOSTILE = "\x1b[2J\r\nübergroß 漢字漢字\u202e\u2028" + "x" * 300


def a_look(topics=12, groups=3, bookies=4, name="orders", **more):
    return {
        "at": "2026-11-29T12:00:01.000+00:00",
        "at_ms": 1_795_953_601_000,
        "over_s": 2.0,
        "topic_count": topics,
        "topics": [
            {
                "name": f"{name}{number}",
                "partitions": 6,
                "records_per_s": 1000.0 - number,
                "bytes_per_s": 2048.0,
            }
            for number in range(min(topics, 50))
        ],
        "group_count": groups,
        "groups": [
            {"group": f"{name}{number}", "state": "Stable", "partitions": 2, "lag": 1_234_567}
            for number in range(min(groups, 50))
        ],
        "bookies": [
            {
                "bookie": f"{name}{number}",
                "address": "10.0.0.1:3181",
                "rack": "r1",
                "status": "away" if number == 1 else "rw",
                "disk_bytes": None if number == 1 else 2**40,
                "free_bytes": None if number == 1 else 2**39,
            }
            for number in range(bookies)
        ],
        "missing": {},
        **more,
    }


def texts(*arguments, **more):
    return [line.text for line in picture(*arguments, **more)]


# the picture


def test_80_columns_show_every_column_and_the_tables_share_24_lines():
    lines = texts(a_look(topics=10_000), [], 80, 24)
    assert lines[:4] == [
        "12:00:01 UTC  10,000 topics  3 groups  4 bookies  rates of the last 2 s",
        "",
        "TOPIC 10 of 10,000                                  RATE     BYTES/S  PARTITIONS",
        "orders0                                           1000/s      2.0KiB           6",
    ]
    assert lines[13:] == [
        "",
        "GROUP                                        LAG  PARTITIONS  STATE",
        *[f"orders{n}                                1,234,567           2  Stable" for n in "012"],
        "",
        "BOOKIE                           STATUS          FREE       DISK  RACK",
        "orders0                          rw          512.0GiB     1.0TiB  r1",
        "orders1                          away               -          -  r1",
        "orders2                          rw          512.0GiB     1.0TiB  r1",
        "orders3                          rw          512.0GiB     1.0TiB  r1",
    ]


def test_40_columns_leave_columns_out_and_keep_names():
    lines = texts(a_look(topics=1, groups=1, bookies=2), [], 40, 24)
    assert lines == [
        "12:00:01 UTC  1 topic  1 group",
        "",
        "TOPIC                               RATE",
        "orders0                           1000/s",
        "",
        "GROUP                                LAG",
        "orders0                        1,234,567",
        "",
        "BOOKIE              STATUS          FREE",
        "orders0             rw          512.0GiB",
        "orders1             away               -",
    ]


def test_ten_lines_have_no_empty_ones_and_say_what_is_left_out():
    assert texts(a_look(), ["no figures"], 40, 10) == [
        "12:00:01 UTC  12 topics  3 groups",
        "no figures",
        "TOPIC 2 of 12                       RATE",
        "orders0                           1000/s",
        "orders1                            999/s",
        "GROUP 2 of 3                         LAG",
        "orders0                        1,234,567",
        "orders1                        1,234,567",
        "BOOKIE 1 of 4       STATUS          FREE",
        "orders0             rw          512.0GiB",
    ]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", ["orders", HOSTILE, ""], ids=["plain", "hostile", "empty"])
@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_nothing_is_wider_or_longer_than_the_screen(width, height, name, count):
    look = a_look(topics=count, groups=count, bookies=count, name=name)
    lines = texts(look, [f"no figures: {name}"], width, height)
    assert 0 < len(lines) <= height
    assert max(map(text_width, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_a_pipe_gets_every_row_and_name_in_full():
    name = "n" * 200
    lines = texts(a_look(topics=50, name=name), [], None, None)
    assert sum(line.startswith(name) for line in lines) == 50 + 3 + 4
    assert not any("…" in line for line in lines)


def test_without_a_header_there_are_rows_only():
    lines = texts(a_look(topics=2, groups=1, bookies=1), [], 80, None, header=False)
    assert [line[:7] for line in lines] == ["orders0", "orders1", "", "orders0", "", "orders0"]


def test_bookies_out_of_reach_are_one_line_that_says_why():
    look = a_look(bookies=0, missing={"bookies": "the server does not say where\x1b"})
    lines = picture({**look, "bookies": None}, [], 60, 24)
    assert lines[-1].text == "BOOKIE  not known: the server does not say where\\x1b"
    assert lines[-1].part is Part.note
    assert "bookies" not in lines[0].text


def test_a_bookie_that_is_away_has_another_colour():
    parts = [line.part for line in picture(a_look(), [], 80, 24)[-4:]]
    assert parts == [Part.row, Part.warning, Part.row, Part.row]


def test_slow_requests_are_the_last_table_and_only_if_there_are_any():
    slow = {
        "request": f"Produce {HOSTILE}",
        "total_ms": 1234.5,
        "age_s": 70,
        "client_id": None,
        "address": "10.0.0.1:50000",
    }
    lines = texts(a_look(slow=[slow]), [], 80, 40)
    at = next(at for at, line in enumerate(lines) if line.startswith("SLOW REQUEST"))
    assert "1,234.5" in lines[at + 1]
    assert all(text_width(line) <= 80 and line.isprintable() for line in lines)
    for other in ([], None):
        assert not any("SLOW" in line for line in texts(a_look(slow=other), [], 80, 40))


@pytest.mark.parametrize(("age_s", "shown"), [(119, "119s"), (120, "2min"), (3_599, "59min")])
def test_the_age_of_a_slow_request_is_in_seconds_and_then_in_minutes(age_s, shown):
    slow = {"request": "Produce t", "total_ms": 600.0, "age_s": age_s}
    lines = texts(a_look(slow=[{**slow, "client_id": None, "address": "a:1"}]), [], 80, 40)
    assert lines[-1].split()[2:4] == ["600.0", shown]


def test_before_the_first_look_there_is_a_title():
    assert texts(None, ["no answer for 3 s"], 80, 24) == ["gateway top", "no answer for 3 s"]


@pytest.mark.parametrize(
    ("wanted", "room", "given"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([10, 1, 2], 9, [6, 1, 2]),
        ([1, 1, 1], 9, [1, 1, 1]),
        ([5, 5, 5], -2, [0, 0, 0]),
    ],
)
def test_lines_are_shared_fairly(wanted, room, given):
    assert shares(wanted, room) == given


# the figures


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [(3, 10, 7), (3, 3, 0), (None, 3, None), (3, None, None), (9, 2, None)],
)
def test_growth_is_unknown_for_a_topic_that_is_new_or_made_anew(before, now, grown):
    assert growth(before, now) == grown


def test_the_lag_of_a_group_is_the_sum_of_its_partitions():
    committed = {("a", 0): 5, ("a", 1): 2}
    assert lag_of(committed, {("a", 1): 4}, {("a", 0): 10, ("a", 1): 10}) == 5 + 6
    assert lag_of(committed, {}, {("a", 0): 10}) is None
    assert lag_of({}, {}, {}) is None


# the command


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("-o", "json"), "an array has an end"),
        ((), "the live view needs a terminal"),
        (("--columns", "topics"), "--columns: the live view has none"),
        (("--interval", "1ms"), "--interval"),
        (("--rows", "0"), "--rows"),
    ],
)
def test_what_cannot_be_shown_is_a_usage_error(words, fault):
    code, out, errors = invoke("top", *words)
    assert (code, out) == (2, "")
    assert fault in errors


def test_only_the_screen_imports_the_library_that_draws_it():
    pattern = re.compile(r"^\s*(?:from|import) rich\b", re.MULTILINE)
    sources = [path for name in ("gateway", "ledger") for path in (ROOT / name).rglob("*.py")]
    found = [path.name for path in sources if pattern.search(path.read_text())]
    assert found == ["top_screen.py"]


def test_no_server_ends_it_with_69():
    code, out, errors = invoke("top", "--once")
    assert (code, out) == (69, "")
    assert errors.count("\n") == 1


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("top") / "data") as broker:
        address = broker.bootstrap
        assert run("topic", "create", "busy", "fresh", "growing", bootstrap=address)[0] == 0
        produced(broker, "busy", 30)
        reader = consumer(broker, "readers")
        reader.subscribe(["busy"])
        wait_until(lambda: reader.poll(0.2) is not None, "a record is read")
        reader.commit(asynchronous=False)
        reader.close()
        yield broker


def test_one_view_has_topics_groups_and_bookies(gateway):
    produced(gateway, "fresh", 3000)
    code, out, errors = run("top", "--once", bootstrap=gateway.bootstrap)
    assert (code, errors) == (0, "")
    words = [line.split() for line in out.splitlines()]
    assert (words[3][:2], words[3][-1]) == (["fresh", "50/s"], "1")
    assert words[8] == ["readers", "29", "1", "Empty"]
    assert words[11][1] == "rw"


@pytest.mark.compat
@pytest.mark.proof
def test_apache_kafka_has_topics_and_groups_and_one_line_about_bookies(tmp_path):
    with ApacheKafka(tmp_path / "data") as broker:
        assert run("topic", "create", "busy", bootstrap=broker.bootstrap)[0] == 0
        produced(broker, "busy", 300)
        code, out, errors = run("top", "--once", bootstrap=broker.bootstrap)
        for command in ("slow", "health"):
            refused = run(command, bootstrap=broker.bootstrap)
            assert refused[:2] == (1, "")
            assert refused[2].count("\n") == 1
            assert "is not a ledger gateway" in refused[2]
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    assert lines[3].split() == ["busy", "5/s", "-", "1"]  # it tells no bytes
    assert lines[-1].startswith("BOOKIE  not known: the server does not say where its ledgers are")


def environment(gateway):
    return {**os.environ, "GATEWAY_BOOTSTRAP": gateway.bootstrap, "TERM": "xterm"}


def argv(*words):
    return heeding([install.gateway_python(), "-m", "gateway", "top", *words])


def test_jsonl_is_a_look_on_each_line_until_ctrl_c(gateway, tmp_path):
    words = ("-o", "jsonl", "--interval", "300ms")
    with Process(
        argv(*words), tmp_path / "out", environment(gateway), errors=tmp_path / "errors"
    ) as process:
        process.wait_for(lambda: process.output().count("\n") >= 1, "the first look", 60)
        produced(gateway, "growing", 100)
        process.wait_for(lambda: process.output().count("\n") >= 4, "more looks", 60)
        process.send_signal(signal.SIGINT)
        assert process.wait_exit(60.0) == 130
    out = process.log.read_text()
    check_output(("top", *words), out)
    looks = [json.loads(line) for line in out.splitlines()]
    assert looks[0]["over_s"] == 60.0
    assert {each["name"] for each in looks[0]["topics"]} == {"busy", "fresh", "growing"}
    written = [
        row["records_per_s"] * look["over_s"]
        for look in looks[1:]
        for row in look["topics"]
        if row["name"] == "growing"
    ]
    assert sum(written) == pytest.approx(100, rel=0.05)
    assert (tmp_path / "errors").read_text() == ""


class Terminal:
    """A terminal of 80 columns and 24 lines, and what was written to it."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.shown = b""

    def read(self, wait_s=0.0):
        """Whether more was written."""
        if select.select([self.ours], [], [], wait_s)[0]:
            self.shown += os.read(self.ours, 65536)
            return True
        return False

    def screens(self):
        """The lines of each screen that was drawn to its end; the first HOME clears all."""
        return [plain(each) for each in self.shown.split(HOME)[2:-1]]

    def wait_for(self, accepts):
        """Read until the last whole screen is accepted."""

        def drawn():
            self.read(0.2)
            return bool(self.screens()) and accepts("\n".join(self.screens()[-1]))

        wait_until(drawn, "a screen", 60)

    def close(self):
        os.close(self.ours)
        os.close(self.theirs)


HOME = b"\x1b[H"  # each screen is drawn from the upper left


def plain(data):
    """The lines without colours and other controls."""
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", data).decode()
    return text.replace("\r", "").split("\n")


@pytest.fixture
def terminal():
    made = Terminal()
    yield made
    made.close()


def started(gateway, terminal):
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    return subprocess.Popen(argv("--interval", "300ms"), env=environment(gateway), **ends)


def check_left(terminal):
    """Check that the terminal is as it was before."""
    while terminal.read():
        pass
    assert terminal.shown.count(b"\x1b[?1049h") == terminal.shown.count(b"\x1b[?1049l") == 1
    assert terminal.shown.rindex(b"\x1b[?25h") > terminal.shown.rindex(b"\x1b[?25l")
    assert b"Traceback" not in terminal.shown
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_sigterm_ends_the_live_view_also_while_no_server_answers(gateway, terminal):
    with started(gateway, terminal) as process:
        terminal.wait_for(lambda screen: "rates of the last 0." in screen)
        gateway.pause()
        try:
            terminal.wait_for(lambda screen: "no answer for 1 s" in screen)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            gateway.resume()
    check_left(terminal)


@pytest.mark.proof
def test_a_server_that_goes_away_is_a_line_and_the_view_goes_on_until_ctrl_c(gateway, terminal):
    with started(gateway, terminal) as process:
        terminal.wait_for(lambda screen: "readers" in screen)
        gateway.kill()
        terminal.wait_for(lambda screen: "no figures since " in screen)
        assert "readers" in "\n".join(terminal.screens()[-1])
        gateway.start()
        terminal.wait_for(lambda screen: "readers" in screen and "no figures" not in screen)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    check_left(terminal)
    assert {len(screen) for screen in terminal.screens()} == {24}
    assert max(text_width(line) for screen in terminal.screens() for line in screen) <= 80
