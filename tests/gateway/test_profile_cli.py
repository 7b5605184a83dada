"""Goal: `gateway profile` keeps comments and secrets, and a protected profile guards its cluster.

Method: the commands in this process; processes where two of them write, and a pseudo-terminal where
a person answers. No server runs: a command that was confirmed ends because it reaches none.
"""

from __future__ import annotations

import json
import stat
import sys
import tomllib

import pytest

from tests.gateway.profile_rig import SECRET, file, gateway, origins, write
from tests.gateway.test_confirm import on_terminal
from tests.peers.processes import Process, wait_until

__all__ = ["file"]

TEXT = """\
# My clusters.
current = "mine"

[profiles.mine] # at home
bootstrap = "127.0.0.1:1"

# The one that earns money.
[profiles.prod]
bootstrap = "127.0.0.1:1"
protected = true
[profiles.prod.sasl]
"sasl.username" = "ann" # not mine
"""


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def left(file) -> list[str]:
    """The names of the files beside the file of profiles."""
    return sorted(each.name for each in file.parent.iterdir())


# create, use, list, show, delete


def test_the_only_profile_can_be_deleted(file):
    assert gateway("profile", "create", "only", "-b", "h:1")[0] == 0
    assert gateway("profile", "delete", "only", "--yes") == (0, "Deleted profile only.\n", "")
    assert gateway("profile", "list", "-o", "json") == (0, "[]\n", "")


def test_the_first_profile_is_created_for_its_user_alone_and_is_current(file):
    words = [
        "-b",
        "a:1",
        "-z",
        "b:2",
        "--set",
        "output=json",
        "--set",
        "security.protocol=plaintext",
    ]
    code, out, errors = gateway("profile", "create", "mine", *words)
    assert (code, out, errors) == (0, "Created profile mine and made it the current one.\n", "")
    assert (mode(file), mode(file.parent), mode(file.parent.parent)) == (0o600, 0o700, 0o700)
    assert tomllib.loads(file.read_text()) == {
        "current": "mine",
        "profiles": {
            "mine": {
                "bootstrap": "a:1",
                "zookeeper": "b:2",
                "output": "json",
                "tls": {"security.protocol": "PLAINTEXT"},
            }
        },
    }
    assert left(file) == ["config.toml", "config.toml.lock"]


def test_a_further_profile_is_current_only_by_use(file):
    write(file, TEXT)
    assert gateway("profile", "create", "b", "-b", "b:1")[1] == "Created profile b.\n"
    assert origins()["bootstrap"] == ("127.0.0.1:1", "current", "mine")
    assert gateway("profile", "create", "c", "-b", "c:1", "--use")[0] == 0
    assert origins()["bootstrap"] == ("c:1", "current", "c")
    assert gateway("profile", "use", "b") == (0, "Profile b is current.\n", "")
    assert origins()["bootstrap"] == ("b:1", "current", "b")
    assert gateway("profile", "use", "none", "-o", "json")[0] == 0
    assert origins()["bootstrap"] == ("127.0.0.1:9092", "default", None)


def test_comments_and_order_stay(file):
    write(file, TEXT, 0o644)
    assert gateway("profile", "create", "new", "--tls", "certificates", "--protected")[0] == 0
    assert gateway("profile", "use", "new")[0] == 0
    text = file.read_text()
    assert text.startswith(TEXT.replace('"mine"', '"new"', 1))
    assert tomllib.loads(text)["profiles"]["new"]["tls"]["bookies"].startswith("/")
    assert gateway("profile", "delete", "new", "--yes")[0] == 0
    assert file.read_text().rstrip() == TEXT.replace('current = "mine"\n', "").rstrip()
    assert mode(file) == 0o600


def test_a_symbolic_link_stays_one(file, tmp_path):
    write(file, "")
    real = tmp_path / "dotfiles.toml"
    file.rename(real)
    file.symlink_to(real)
    assert gateway("profile", "create", "mine", "-b", "a:1")[0] == 0
    assert file.is_symlink() and "a:1" in real.read_text()


def test_a_list_marks_the_current_and_the_protected_profiles(file):
    assert gateway("profile", "list") == (
        0,
        "NAME CURRENT PROTECTED BOOTSTRAP ZOOKEEPER\n",
        "",
    )
    assert gateway("profile", "list", "-o", "json") == (0, "[]\n", "")
    write(file, TEXT)
    rows = json.loads(gateway("profile", "list", "-o", "json")[1])
    assert [(row["name"], row["current"], row["protected"]) for row in rows] == [
        ("mine", True, False),
        ("prod", False, True),
    ]


def test_show_prints_one_profile_and_needs_one(file):
    code, _, errors = gateway("profile", "show")
    assert (code, "no profile is in use" in errors) == (2, True)
    write(file, TEXT)
    assert json.loads(gateway("profile", "show", "prod", "-o", "json")[1]) == {
        "name": "prod",
        "current": False,
        "settings": {"bootstrap": "127.0.0.1:1", "sasl.username": "ann", "protected": "true"},
    }
    assert gateway("profile", "show")[1].startswith("Profile: mine\n\nKEY       VALUE\n")
    code, _, errors = gateway("profile", "show", "mine", "--profile", "prod")
    assert (code, "profile mine and --profile prod differ" in errors) == (2, True)


def test_show_names_the_origin_of_each_setting(file):
    write(file, TEXT)
    out = gateway("profile", "show", "prod", "--origin", "-z", "z:1", GATEWAY_OUTPUT="json")[1]
    rows = {row["key"]: (row["value"], row["origin"], row["from"]) for row in json.loads(out)}
    assert rows == {
        "bootstrap": ("127.0.0.1:1", "profile", "prod"),
        "zookeeper": ("z:1", "flag", "--zookeeper"),
        "tls": (None, "default", None),
        "schema_registry": (None, "default", None),
        "output": ("json", "environment", "GATEWAY_OUTPUT"),
        "color": ("auto", "default", None),
        "sasl.username": ("ann", "profile", "prod"),
        "security.protocol": ("PLAINTEXT", "default", None),
        "protected": ("true", "profile", "prod"),
    }


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["create", "mine", "-b", "a:1"],
            1,
            "profile mine exists; change it with `gateway profile",
        ),
        (["create", "none"], 2, "none stands for no profile"),
        (["create", "a/b"], 2, "must be letters, digits, '-', '_' and '.'"),
        (["create", "new", "-b", "a"], 2, "--bootstrap a: 'a' is not host:port"),
        (["create", "new", "-z", "a"], 2, "--zookeeper a: must be host:port"),
        (["create", "new", "--set", "x"], 2, "--set: is not key=value"),
        (["create", "new", "--set", "ssl.protocl=x"], 2, "did you mean ssl.protocol?"),
        (["create", "new", "--set", "output=xml"], 2, "--set output: must be table, wide, json"),
        (["create", "new", "--set", "color=auto", "--set", "color=auto"], 2, "is set twice"),
        (["use", "prd"], 2, "prd: there is no such profile: did you mean prod?"),
        (["show", "prd"], 2, "prd: there is no such profile: did you mean prod?"),
        (["delete", "prd"], 2, "prd: there is no such profile: did you mean prod?"),
        (["delete", "mine"], 2, "this deletes profile mine, which is current; add --yes to do it"),
        (["delete", "prod"], 2, "this deletes profile prod, which is protected; add --yes to do"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_mistake_is_one_line_and_changes_nothing(words, code, message, file):
    write(file, TEXT)
    for form in ([], ["-o", "json"]):
        found, out, errors = gateway("profile", *words, *form)
        assert (found, out, errors.count("\n")) == (code, "", 1)
        assert message in errors
        assert errors.startswith('{"error": ' if form else "gateway: ")
    assert file.read_text() == TEXT


def test_a_password_comes_from_stdin_and_never_from_an_argument(file):
    code, _, errors = gateway("profile", "create", "a", "--set", f"sasl.password={SECRET}")
    assert (code, SECRET in errors, "on stdin" in errors) == (2, False, True)
    registry = f"schema_registry=http://ann:{SECRET}@r:1"
    assert gateway("profile", "create", "a", "--set", registry)[0] == 2
    assert not file.exists()
    words = ["profile", "create", "a", "--set", "sasl.password=-"]
    code, out, errors = gateway(*words, stdin=f"{SECRET}\n")
    assert (code, SECRET in out + errors, "have no effect" in errors) == (0, False, True)
    assert tomllib.loads(file.read_text())["profiles"]["a"]["sasl"]["sasl.password"] == SECRET


def test_a_file_with_a_fault_is_not_changed(file):
    write(file, TEXT + "x = 1\n")
    for words in (["create", "new"], ["use", "prod"], ["delete", "mine", "--yes"], ["list"]):
        code, out, errors = gateway("profile", *words)
        assert (code, out) == (78, "")
        assert errors == f"gateway: {file} line 13: unknown key x\n"
    assert file.read_text() == TEXT + "x = 1\n"


def test_a_form_that_cannot_be_changed_without_harm_is_left_as_it_is(file):
    write(file, "profiles.a.bootstrap = 'a:1'\n")
    code, out, errors = gateway("profile", "create", "b", "-b", "b:1")
    assert (code, out, "use `gateway profile edit`" in errors) == (78, "", True)
    assert file.read_text() == "profiles.a.bootstrap = 'a:1'\n"


def test_a_place_that_takes_no_file_is_named(file, tmp_path):
    (tmp_path / "config").write_text("")
    code, out, errors = gateway("profile", "create", "a", "-b", "a:1")
    assert (code, out) == (74, "")
    assert errors.startswith(f"gateway: cannot write {tmp_path}/config/ledger-gateway")


# edit


def editor(tmp_path, body: str) -> str:
    """A program that edits the file of its argument as `body` does."""
    script = tmp_path / "editor.py"
    script.write_text(f"import os, sys\npath = sys.argv[1]\ntext = open(path).read()\n{body}\n")
    return f"{sys.executable} {script}"


@pytest.mark.process
def test_edit_installs_what_is_valid(file, tmp_path):
    write(file, TEXT, 0o644)
    body = "os.unlink(path); open(path, 'w').write(text.replace('ann', 'bob'))"
    ends = gateway("profile", "edit", EDITOR="false", VISUAL=editor(tmp_path, body))
    assert ends == (0, f"Changed {file}.\n", "")
    assert file.read_text() == TEXT.replace("ann", "bob")
    assert (mode(file), left(file)) == (0o600, ["config.toml", "config.toml.lock"])


@pytest.mark.process
def test_edit_begins_with_an_example(file, tmp_path):
    body = "assert '[profiles.local]' in text; open(path, 'w').write(text.replace('# ', ''))"
    code, _, errors = gateway("profile", "edit", EDITOR=editor(tmp_path, body))
    assert code == 78, errors  # the first line is no TOML without its mark
    body = "import re; open(path, 'w').write(re.sub('(?m)^# (?!Prof)', '', text))"
    assert gateway("profile", "edit", EDITOR=editor(tmp_path, body))[0] == 0
    assert origins()["bootstrap"] == ("127.0.0.1:9092", "current", "local")


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("open(path, 'a').write('[')", 78, "line 13: "),
        ("open(path, 'a').write('sasl.pass = 1')", 78, "line 13: "),
        ("open(path, 'a').write('\\n'); sys.exit(3)", 1, "the editor ended with 3"),
        (
            "open(path, 'a').write('\\n'); open(FILE, 'a').write('\\n')",
            1,
            "another command changed",
        ),
    ],
    ids=["no TOML", "unknown key", "failed", "raced"],
)
def test_edit_keeps_a_text_that_it_does_not_install(body, code, message, file, tmp_path):
    write(file, TEXT)
    program = editor(tmp_path, body.replace("FILE", repr(str(file))))
    found, out, errors = gateway("profile", "edit", EDITOR=program)
    assert (found, out, errors.count("\n")) == (code, "", 1)
    assert message in errors and f"{file} was not changed" in errors
    assert file.read_text().rstrip() == TEXT.rstrip()
    kept = next(file.parent.glob(".edit-*/config.toml"))
    assert errors.endswith(f"your text is in {kept}\n")
    assert kept.read_text().startswith(TEXT)
    assert (mode(kept), mode(kept.parent)) == (0o600, 0o700)


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        ("true", 0, ""),
        ("false", 1, "the editor ended with 1"),
        ("no-such-editor", 78, "no-such-editor: No such file or directory; name your editor by"),
        ("'", 78, "EDITOR: No closing quotation"),
    ],
)
def test_edit_without_a_change_leaves_nothing_behind(program, code, message, file):
    write(file, TEXT)
    found, _, errors = gateway("profile", "edit", EDITOR=program)
    assert (found, message in errors) == (code, True), errors
    assert "your text is in" not in errors
    assert (file.read_text(), left(file)) == (TEXT, ["config.toml", "config.toml.lock"])


# two at a time, and a full disk

LOOP = """
import sys
from gateway.process.cli import program
for number in range(15):
    name = f"{sys.argv[1]}-{number}"
    for words in (["create", name, "-b", "a:1"], ["use", name]):
        assert program(["profile", *words], prog_name="gateway", standalone_mode=False) in (0, None)
"""
FULL = """
import resource, sys
from gateway.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
sys.argv = ["gateway", "profile", "use", "prod"]
main()
"""


@pytest.mark.process
def test_of_two_processes_that_write_none_loses_a_profile(file, tmp_path):
    runs = [
        Process([sys.executable, "-c", LOOP, name], tmp_path / f"{name}.log") for name in ("a", "b")
    ]
    wait_until(lambda: all(run.exit_code is not None for run in runs), 60)
    assert [run.exit_code for run in runs] == [0, 0], [run.output() for run in runs]
    found = tomllib.loads(file.read_text())
    assert set(found["profiles"]) == {f"{name}-{at}" for name in "ab" for at in range(15)}
    assert found["current"] in ("a-14", "b-14")


@pytest.mark.process
def test_a_disk_without_room_keeps_the_old_file(file, tmp_path):
    write(file, TEXT)
    run = Process([sys.executable, "-c", FULL], tmp_path / "log")
    wait_until(lambda: run.exit_code is not None, "the run to end")
    assert run.exit_code == 74, run.output()
    assert "cannot write" in run.output() and "Traceback" not in run.output()
    assert (file.read_text(), left(file)) == (TEXT, ["config.toml", "config.toml.lock"])


# protected profiles

DESTRUCTIVE = [  # the last three have no --yes
    ["topic", "delete", "orders"],
    ["topic", "truncate", "orders", "--to", "end"],
    ["group", "delete", "readers"],
    ["transaction", "abort", "orders", "0", "--start-offset", "7"],
    ["bookie", "decommission", "bookie-1"],
    ["ledger", "recover", "17"],
    ["feature", "downgrade", "transaction.version=1"],
    ["feature", "upgrade"],
    ["group", "copy", "readers", "--from", "127.0.0.1:2", "--execute"],
]


@pytest.fixture
def guarded(file):
    """A file whose profile `prod` is protected, and connects."""
    write(file, TEXT[: TEXT.index("[profiles.prod.sasl]")])
    return file


@pytest.mark.parametrize("words", DESTRUCTIVE, ids=" ".join)
def test_a_protected_profile_needs_its_name(words, guarded):
    words = [*words, "--profile", "prod"]
    has_yes = "feature" not in words and "copy" not in words
    for agreed in ([], ["--yes"] if has_yes else []):
        for form in ([], ["-o", "json"]):
            code, out, errors = gateway(*words, *agreed, *form)
            assert (code, out, errors.count("\n")) == (2, "", 1)
            assert "on the protected profile prod; add --yes-on prod to do it" in errors
    code, out, errors = gateway(*words, "--yes-on", "prd")
    assert (code, out) == (2, "")
    assert errors == "gateway: --yes-on prd: nothing was done, because the profile is prod\n"
    code, _, errors = gateway(*words, "--yes-on", "prod")
    assert (code, "no server at 127.0.0.1:1" in errors) == (69, True)
    code, _, errors = gateway(*words, "--yes-on", "prod", GATEWAY_PROFILE="mine")
    assert code == 69


@pytest.mark.parametrize("words", DESTRUCTIVE[:-3], ids=" ".join)
def test_the_name_of_a_profile_agrees_only_where_that_profile_is_in_use(words, guarded):
    code, _, errors = gateway(*words)
    assert (code, "; add --yes" in errors, "--yes-on" in errors) == (2, True, False)
    assert gateway(*words, "--yes")[0] == 69
    assert gateway(*words, "--yes-on", "mine")[0] == 69
    code, _, errors = gateway(*words, "--yes", "--yes-on", "prod")
    assert (code, errors.count("because the profile is mine")) == (2, 1)
    code, _, errors = gateway(*words, "--yes-on", "mine", "--profile", "none")
    assert (code, errors.count("because no profile is in use")) == (2, 1)


def test_other_servers_do_not_end_the_protection(guarded):
    words = ["topic", "delete", "orders", "--yes", "-b", "127.0.0.1:2"]
    assert gateway(*words, "--profile", "prod")[0] == 2
    assert gateway(*words, GATEWAY_PROFILE="prod")[0] == 2


def test_a_change_that_can_be_undone_is_not_asked_for(guarded):
    for words in (["topic", "list"], ["feature", "upgrade", "--dry-run"]):
        assert gateway(*words, "--profile", "prod")[0] == 69


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "words", "code"),
    [("orders", [], 2), ("mine", ["--yes"], 2), ("prod", ["--yes"], 69), ("prod", [], 69)],
)
def test_a_terminal_is_asked_for_the_name_of_the_profile(answer, words, code, guarded):
    argv = ["topic", "delete", "orders", "--profile", "prod", *words]
    found, out, shown = on_terminal(answer, *argv)
    assert (found, out) == (code, ""), shown
    assert "Type prod to do it: " in shown
    assert ("nothing was done: the answer was not prod" in shown) == (code == 2)
