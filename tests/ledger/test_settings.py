"""Goal: each setting has the value of its highest origin, and all faults are found in one start,
each with its file and line, without a secret.

Method: a table with a row of each kind, read from flags, variables and files in this process.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.command_line import units
from ledger.command_line.program import Command, flags_of
from ledger.command_line.settings import (
    NOTICES_MAX,
    Foreign,
    KafkaKey,
    Setting,
    Settings,
    Table,
    file_options,
    options_of,
)
from ledger.command_line.settings_report import report

ROWS = (
    Setting(name="port", kind="PORT", parse=units.whole(0, 65_535), default=9092, help="P."),
    Setting(name="rack", kind="RACK", parse=units.text, default="", help="R."),
    Setting(
        name="node-id",
        kind="ID",
        parse=units.whole(0, 99),
        default=0,
        kafka=(KafkaKey("node.id"), KafkaKey("broker.id")),
        help="N.",
    ),
    Setting(
        name="delay",
        kind="DURATION",
        parse=units.duration(0, 1e6),
        default=3.0,
        kafka=(KafkaKey("delay.ms", unit="ms"),),
        old=("--delay-ms", "ms"),
        help="D.",
    ),
    Setting(name="cache", kind="SIZE", parse=units.size(0, 2**40), default=1024, help="C."),
    Setting(name="create", default=True, kafka=(KafkaKey("auto.create"),), help="A."),
    Setting(
        name="data",
        kind="DIR",
        parse=units.path,
        kafka=(KafkaKey("log.dirs", is_list=True),),
        help="D.",
    ),
    Setting(name="key", kind="KEY", parse=units.text, secret=True, help="K."),
    Setting(
        name="ledger-port", kind="PORT", parse=units.whole(0, 9), default=3, off="No.", help="L."
    ),
)


def foreign(key, value, _):
    if key == "log.flush":
        return Foreign("has no effect here", False)
    return Foreign("is refused", True) if key == "authorizer" else None


TABLE = Table("TOOL", ROWS, one_start=("once",), foreign=foreign)
COMMAND = Command("tool", params=[*options_of(TABLE), *file_options("TOOL")], callback=None)


def read(*words, environment=None):
    flags = flags_of(COMMAND, list(map(str, words)))
    return Settings(flags, TABLE, environment or {})


@pytest.fixture
def written(tmp_path):
    """A function that writes a file, and returns the settings that it makes."""

    def write(text, *words, name="tool.toml", environment=None, mode=0o600):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)
        return read("--config", file, *words, environment=environment)

    return write


def lines(found, tmp_path):
    return [line.replace(f"{tmp_path}/", "") for line in found]


# -- values ----------------------------------------------------------------------------------------


def test_a_flag_goes_before_a_variable_before_the_file_before_the_default(written, tmp_path):
    text = "port = 1\nnode-id = 1\nrack = 'a'\n"
    found = written(text, "--port", "3", environment={"TOOL_PORT": "2", "TOOL_NODE_ID": "2"})
    assert [found[name] for name in ("port", "node-id", "rack", "delay")] == [3, 2, "a", 3.0]
    assert [found.origin(name) for name in ("port", "node-id", "rack", "delay")] == [
        *("flag", "environment TOOL_NODE_ID", f"file {tmp_path}/tool.toml:3", "default")
    ]
    assert found.faults == found.warnings == []


@pytest.mark.parametrize(
    "text",
    [
        "node_id = 7",
        "'node-id' = 7",
        "node.id = 7",
        "'node.id' = 7",
        "[node]\nid = 7",
        "node = {id = 7}",
        "broker.id = 7",
        "node-id = '7'",
    ],
)
def test_a_key_of_toml_has_several_forms(written, text):
    found = written(text)
    assert (found.faults, found["node-id"]) == ([], 7)


@pytest.mark.parametrize(
    "text",
    ["node.id=7", "node.id = 7 ", "broker.id:7", "node-id 7", "node_id=7", "node\\.id=\\\n  7"],
)
def test_a_key_of_properties_has_several_forms(written, text):
    found = written(text, name="server.properties")
    assert (found.faults, found["node-id"]) == ([], 7)


@pytest.mark.parametrize(
    ("text", "delay_s"),
    [
        ("'delay.ms' = 1500", 1.5),
        ("delay.ms = '2s'", 2.0),
        ("delay = '1500ms'", 1.5),
        ("delay.ms = 0", 0.0),
    ],
)
def test_a_number_under_a_key_of_kafka_has_the_unit_of_that_key(written, text, delay_s):
    assert written(text)["delay"] == delay_s
    assert written(text.replace("'", ""), name="a.properties")["delay"] == delay_s


@pytest.mark.parametrize(("text", "value"), [("true", True), ("FALSE", False)])
def test_a_boolean_is_text_in_variables_and_properties(written, text, value):
    assert read(environment={"TOOL_CREATE": text})["create"] is value
    assert written(f"auto.create={text}", name="a.properties")["create"] is value
    assert written(f"create = {text.lower()}")["create"] is value


def test_a_port_that_can_be_off_is_off_by_flag_variable_and_file(written):
    assert read("--no-ledger-port")["ledger-port"] is None
    assert read(environment={"TOOL_LEDGER_PORT": "off"})["ledger-port"] is None
    assert written("ledger-port = 'off'")["ledger-port"] is None
    found = written("ledger-port = 'off'", "--ledger-port", "5")
    assert (found["ledger-port"], found.origin("ledger-port")) == (5, "flag")


def test_a_variable_that_a_flag_overrides_is_not_read():
    variables = {"TOOL_PORT": "many", "TOOL_LEDGER_PORT": "many", "TOOL_CREATE": "many"}
    found = read("--port", "1", "--no-ledger-port", "--no-create", environment=variables)
    assert (found.faults, found["port"]) == ([], 1)


def test_an_empty_variable_counts_as_none():
    assert read(environment={"TOOL_PORT": ""}).origin("port") == "default"


def test_the_port_that_kubernetes_sets_for_a_service_is_ignored_with_a_warning():
    value = "tcp://10.0.0.7:9092"
    found = read(environment={"TOOL_PORT": value, "TOOL_SERVICE_HOST": "10.0.0.7"})
    assert (found["port"], found.faults) == (9092, [])
    assert found.warnings == [
        f"TOOL_PORT={value}: Kubernetes sets this for a Service; it is ignored"
    ]
    assert read(environment={"TOOL_PORT": value}).faults != []


def test_a_worker_has_the_values_of_the_file_that_its_supervisor_read(written, tmp_path):
    found = written("rack = 'a b'\ndelay = '7ms'\nledger-port = 'off'\ncreate = false\n")
    again = read(environment=found.of_file())
    assert [again[row.name] for row in ROWS] == [found[row.name] for row in ROWS]
    assert again.faults == []


# -- faults ----------------------------------------------------------------------------------------


def test_all_faults_are_found_at_once_and_each_has_its_place(written, tmp_path):
    text = """# a comment
prot = 1
port = '''
many'''
node.id = 100
broker.id = 7
delay = 5

[cache]
size = 1
[x]
create = "yes"
"""
    environment = {"TOOL_CACHE": "1GB", "TOOL_CREATE": "maybe", "TOOL_RACK": "\udcff"}
    found = written(text, "--delay-ms", "x", "--ledger-port", "10", environment=environment)
    assert lines(found.faults, tmp_path) == [
        "tool.toml:2: prot: unknown key; did you mean port?",
        'tool.toml:3: port = "many": must be a whole number between 0 and 65535',
        "tool.toml:5: node.id = 100: must be a whole number between 0 and 99",
        "tool.toml:6: broker.id: sets node-id again, after node.id in line 5; keep one",
        "tool.toml:7: delay = 5: 5 has no unit; write 5s, 500ms, 5m, 1h, 7d or PT1H30M",
        "tool.toml:10: cache.size: unknown key; did you mean cache?",
        "tool.toml:12: x.create: unknown key; did you mean create?",
        "TOOL_RACK=\udcff: is not valid UTF-8",
        "TOOL_CACHE=1GB: must be a size in B, KiB, MiB, GiB, TiB, such as 256MiB",
        "TOOL_CREATE=maybe: must be true or false",
        "--delay-ms x: must be a duration in ms, s, m, h, d, such as 10s or PT1H30M",
        "--ledger-port 10: must be a whole number between 0 and 9",
    ]
    names = {"port", "node-id", "delay", "rack", "cache", "create", "ledger-port"}
    assert found.faulty == names


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("once = true", ":1: once: concerns one start only; pass the flag --once"),
        ("authorizer = 'x'", ":1: authorizer: is refused"),
        ("zzzzzz = 1", ":1: zzzzzz: unknown key"),
        ("port = [1, 2]", ":1: port = [1, 2]: must be a whole number between 0 and 65535"),
        ("port = 1.5", ":1: port = 1.5: must be a whole number between 0 and 65535"),
        ("port = 2020-01-01", ":1: port = 2020-01-01: must be a whole number"),
        ("[[port]]\nx = 1\n[[port]]\n", ":1: port = [{'x': 1}, {}]: must be a whole number"),
        ("[port]\n# nothing\n", ":1: port = {}: must be a whole number"),
        ("rack = ''", ':1: rack = "": must not be empty'),
        ("rack = '" + "a" * 300 + "\\t'", None),
        ("port = 1\n\nport = 2\n", ":3: Cannot overwrite a value"),
        ("port = ", ":1: Invalid value"),
        ("x = 'a", ":1: "),
        (b"port = 1\nrack = '\xff'", ":2: is not valid UTF-8"),
        ("port = " + "9" * 5_000, "tool.toml: has a number of more than 4,300 digits"),
        ("a = " + "[" * 20_000, "tool.toml: nests too deeply"),
        ("a." * 50 + "b = 1", "has too many parts"),
        ("a" + " = 1\na".join(map(str, range(20_000))) + " = 1", "has more than 10000 keys"),
        ("#" * (1024 * 1024 + 1), "is longer than 1 MiB"),
    ],
)
def test_a_fault_of_a_file_is_one_line(written, text, fault):
    found = written(text)
    assert len(found.faults) == (fault is not None)
    if fault is not None:
        assert fault in found.faults[0]
        assert "\n" not in found.faults[0]


def test_a_file_of_one_mebibyte_is_read(written):
    text = "port = 5\n#"
    assert written(text + "#" * (1024 * 1024 - len(text)))["port"] == 5


def test_a_long_value_is_cut(written):
    found = written("port = '" + "a" * 300 + "'")
    assert found.faults[0].endswith("a...: must be a whole number between 0 and 65535")
    assert len(found.faults[0]) < 400


def test_a_fault_that_is_found_later_is_named_by_its_place(written, tmp_path):
    found = written("port = 5\ndelay = '1s'\n", "--delay-ms", "70", environment={"TOOL_RACK": "r"})
    assert found.placed("--port 5: in use") == f"{tmp_path}/tool.toml:1: port = 5: in use"
    assert found.placed("--rack r --port 5: no") == "TOOL_RACK=r --port 5: no"
    assert found.placed("--delay 70ms: no") == "--delay-ms 70: no"
    assert found.placed("--port 55: no") == "--port 55: no"
    assert found.placed("--cache 1KiB: no") == "--cache 1KiB: no"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert read("--config", tmp_path / "none.toml").faults == [
        f"--config {tmp_path}/none.toml: No such file or directory"
    ]
    assert read("--config", tmp_path).faults == [f"--config {tmp_path}: Is a directory"]


def test_the_number_of_faults_is_bounded(written):
    found = written("".join(f"a{number} = 1\n" for number in range(500)))
    assert len(found.faults) == NOTICES_MAX + 1
    assert found.faults[-1] == "there are more than 100 faults; the others are not shown"


def test_a_key_without_effect_is_a_warning(written, tmp_path):
    found = written("log.flush = 1\nport = 5\n")
    assert (found.faults, found["port"]) == ([], 5)
    assert lines(found.warnings, tmp_path) == ["tool.toml:1: log.flush: has no effect here"]


def test_of_a_repeated_property_the_last_one_counts_with_a_warning(written, tmp_path):
    found = written("port=1\nport=2\n", name="a.properties")
    assert (found.faults, found["port"]) == ([], 2)
    assert found.origin("port") == f"file {tmp_path}/a.properties:2"
    assert lines(found.warnings, tmp_path) == [
        "a.properties:2: port: line 1 sets it too; the last one counts"
    ]


def test_a_fault_of_properties_has_its_line(written, tmp_path):
    found = written("\n# x\nport=\\\n  many\nlog.dirs=/a,/b\n", name="a.properties")
    assert lines(found.faults, tmp_path) == [
        "a.properties:3: port=many: must be a whole number between 0 and 65535",
        "a.properties:5: log.dirs=/a,/b: only one value is possible here",
    ]
    found = written("port=1\nrack=\\u00g1\n", name="a.properties")
    assert lines(found.faults, tmp_path) == [
        "a.properties:2: \\u needs four hex digits; write \\\\ for a backslash"
    ]
    found = written("rack=\\ud800\n", name="a.properties")
    assert lines(found.faults, tmp_path) == ["a.properties:1: rack=\ud800: is not valid UTF-8"]


# -- secrets ---------------------------------------------------------------------------------------

SECRET = "hunter2"


@pytest.mark.parametrize("form", ["table", "json", "toml"])
def test_a_secret_is_printed_in_no_form(written, form):
    places = [
        read("--key", SECRET),
        read(environment={"TOOL_KEY": SECRET}),
        written(f"key = '{SECRET}'"),
        written(f"key={SECRET}", name="a.properties"),
    ]
    for found in places:
        assert found["key"] == SECRET
        text = report(found, form)
        assert SECRET not in text
        assert "[hidden]" in text


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_secret_in_a_file_that_others_may_read_is_refused(written, tmp_path, mode):
    found = written(f"port = 1\nkey = '{SECRET}'\n", mode=mode)
    assert found.faults == [
        f"{tmp_path}/tool.toml:2: key: other users can read this secret; "
        f"run chmod 600 {tmp_path}/tool.toml"
    ]
    assert written("port = 1\n", mode=mode).faults == []
    assert len(written(f"key = '{SECRET}'\n", mode=0o640).faults) == 1


def test_a_fault_of_a_secret_does_not_show_it(written):
    def refuse(value):
        raise ValueError(f"{value} is bad")

    row = Setting(name="key", kind="KEY", parse=refuse, secret=True, help="K.")
    table = Table("TOOL", [row])
    command = Command("tool", params=[*options_of(table), *file_options("TOOL")], callback=None)
    file = written(f"key = '{SECRET}'").flags.config
    found = Settings(flags_of(command, ["--config", file]), table, {"TOOL_KEY": SECRET})
    assert found.faults == [
        f"{file}:1: key = [hidden]: [hidden] is bad",
        "TOOL_KEY=[hidden]: [hidden] is bad",
    ]
    found = Settings(flags_of(command, ["--key", SECRET]), table, {})
    assert found.faults == ["--key [hidden]: [hidden] is bad"]


# -- what is printed -------------------------------------------------------------------------------


def test_the_table_has_each_setting_with_its_value_and_origin(written, tmp_path):
    text = report(written("delay = '90s'", "--port", "1", "--no-ledger-port"), "table")
    assert text.replace(str(tmp_path), "DIR").splitlines() == [
        "SETTING     VALUE ORIGIN",
        "port        1     flag",
        "rack        -     default",
        "node-id     0     default",
        "delay       90s   file DIR/tool.toml:1",
        "cache       1KiB  default",
        "create      true  default",
        "data        -     default",
        "key         -     default",
        "ledger-port off   flag",
    ]


def test_json_has_the_values_as_a_file_has_them(written):
    rows = json.loads(report(read("--port", "1", "--delay", "90s"), "json"))["settings"]
    found = {row["setting"]: (row["value"], row["origin"]) for row in rows}
    assert found["port"] == (1, "flag")
    assert found["delay"] == ("90s", "flag")
    assert found["create"] == (True, "default")
    assert found["data"] == (None, "default")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    st.floats(0, 1e6, allow_subnormal=False),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_what_is_printed_as_toml_gives_the_same_settings(
    written, rack, delay_s, cache_bytes, create
):
    values = {"rack": rack, "delay": delay_s, "cache": cache_bytes, "create": create}
    flags = {name: TABLE[name].write(value) for name, value in values.items() if name != "create"}
    words = [f"--{name}={text}" for name, text in flags.items()]
    words.append("--create" if create else "--no-create")
    before = read(*words)
    assert before.faults == []
    after = written(report(before, "toml"))
    assert after.faults == after.warnings == []
    assert [after[row.name] for row in ROWS] == [before[row.name] for row in ROWS]
    assert [after.is_default(row.name) for row in ROWS] == [
        before.is_default(row.name) for row in ROWS
    ]
