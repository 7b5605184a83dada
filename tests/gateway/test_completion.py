"""Goal: a shell completes commands, flags, choices, topics and groups, and never waits long.

Method: the program as a shell calls it, and real shells on a terminal of their own.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from gateway.admin import completion
from gateway.process.cli import program
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.house import ROOT
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ledger-gateway"


def completed(*words, monkeypatch, bootstrap="127.0.0.1:1"):
    """What is printed to a shell for these words, of which the last one is being typed."""
    from click.shell_completion import get_completion_class

    monkeypatch.setenv("GATEWAY_BOOTSTRAP", bootstrap)
    shell = get_completion_class("fish")(program, {}, "gateway", "_GATEWAY_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("topi",), ["topic"]),
        (("topic", "desc"), ["describe"]),
        (("topic", "list", "--inter"), ["--internal"]),
        (("topic", "list", "-o", "js"), ["json", "jsonl"]),
        (("events", "--kind", "ro"), ["roll"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_commands_flags_and_choices_need_no_server(words, found, monkeypatch):
    assert completed(*words, monkeypatch=monkeypatch) == found


def test_names_that_cannot_be_typed_as_a_word_are_left_out(monkeypatch, cache):
    path = completion._file("topics", "127.0.0.1:1")
    names = ["orders", "ordinary", "or\x1b[1m", "or two", "or\nthree", "__internal", "other"]
    completion._write(path, names)
    words = ("topic", "describe", "or")
    assert completed(*words, monkeypatch=monkeypatch) == ["orders", "ordinary"]
    assert completed("topic", "describe", "", monkeypatch=monkeypatch) == [
        "orders",
        "ordinary",
        "other",
    ]
    assert completed("topic", "describe", "__", monkeypatch=monkeypatch) == ["__internal"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "name",
    [
        "sol$(touch${IFS}/tmp/x)",
        "sol;id",
        "sol*",
        "sol?",
        "sol[a]",
        "sol{a,b}",
        "sol`id`",
        "sol two",
        "sol'",
        'sol"',
        "sol\\",
        "sol\n",
        "sol\nid",
        "sol|id",
        "sol&",
        "sol>x",
        "sol~",
        "sol!1",
        "sol#",
        "sol,x",
        "sol\N{FULLWIDTH DIGIT ONE}",
        "-sol",
        "",
    ],
)
@pytest.mark.parametrize("command", [("topic", "describe"), ("group", "describe")])
def test_names_that_a_shell_reads_as_more_than_a_word_are_not_offered(command, name, monkeypatch):
    path = completion._file(f"{command[0]}s", "127.0.0.1:1")
    completion._write(path, [name, "sol.A_1:@%+=/-z"])
    for typed in ("", name[:1], "sol"):
        assert name not in completed(*command, typed, monkeypatch=monkeypatch)
    assert completed(*command, "sol", monkeypatch=monkeypatch) == ["sol.A_1:@%+=/-z"]


def script_of(shell, argv, monkeypatch):
    """The script that the command prints if it was started so."""
    monkeypatch.setattr(sys, "argv", argv)
    done = CliRunner().invoke(program, ["completion", shell], prog_name="gateway")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def run_in_bash(script, directory, environment):
    """Run a script in bash, in a directory, and return what became of it."""
    return subprocess.run(
        ["/bin/bash", "--norc", "-c", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_bash_takes_each_name_as_it_is(tmp_path, monkeypatch):
    """Without completing it to files that match, and with patterns as before afterwards."""
    for name in ("solar", "plain,solid"):
        (tmp_path / name).touch()
    (tmp_path / "gateway").write_text("#!/bin/sh\necho 'plain,sol*'\n")
    (tmp_path / "gateway").chmod(0o755)
    script = script_of("bash", ["gateway"], monkeypatch)
    script += "COMP_WORDS=(gateway topic sol); COMP_CWORD=2; _gateway_completion gateway\n"
    script += 'printf "%s\\n" "${COMPREPLY[@]}"; echo sola*'
    done = run_in_bash(script, tmp_path, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.split("\n") == ["sol*", "solar", ""], done.stderr


def test_a_source_tree_is_completed_by_its_own_modules_in_any_directory(tmp_path, monkeypatch):
    hostile = "from pathlib import Path; Path('ran').touch()\n"
    (tmp_path / "gateway").mkdir()
    for name in ("gateway/__init__.py", "gateway/__main__.py", "click.py", "asyncio.py"):
        (tmp_path / name).write_text(hostile)
    script = script_of("bash", ["/tree/gateway/__main__.py"], monkeypatch)
    script += "COMP_WORDS=(gateway topi); COMP_CWORD=1; _gateway_completion gateway\n"
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = run_in_bash(script, tmp_path, {"PATH": os.environ["PATH"], "PYTHONPATH": ""})
    assert done.stdout == "topic\n", done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_no_shell_starts_the_interpreter_in_the_current_directory(shell, monkeypatch):
    script = script_of(shell, ["/tree/gateway/__main__.py"], monkeypatch)
    assert f"PYTHONPATH={ROOT} {sys.executable} -P -m gateway)" in script


@pytest.mark.parametrize("data", ["", "{", "{}", '"orders"', "[1, null]"])
def test_a_damaged_file_of_names_completes_nothing(data, monkeypatch):
    path = completion._file("groups", "127.0.0.1:1")
    path.parent.mkdir(parents=True)
    path.write_text(data)
    assert completed("group", "describe", "", monkeypatch=monkeypatch) == []


def test_names_are_asked_for_again_after_a_minute(monkeypatch):
    path = completion._file("topics", "127.0.0.1:1")
    completion._write(path, ["orders"])
    old = time.time() - completion.KEPT_S - 5
    os.utime(path, (old, old))
    assert completed("topic", "describe", "o", monkeypatch=monkeypatch) == []


def test_a_server_that_never_answers_completes_nothing(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ("topic", "describe", "o")
        assert completed(*words, monkeypatch=monkeypatch, bootstrap=address) == []


TLS_HANDSHAKE = b"\x16\x03"  # the first bytes of a ClientHello
PROFILES = """
current = "near"
[profiles.near]
bootstrap = "127.0.0.1:1"
[profiles.northern]
bootstrap = "127.0.0.1:2"
[profiles.sealed]
tls = { "security.protocol" = "SSL" }
"""


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GATEWAY_PROFILE", raising=False)
    place = tmp_path / "config" / "ledger-gateway" / "config.toml"
    place.parent.mkdir(parents=True)
    place.write_text(PROFILES)
    return place


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("topic", "list", "--profile", "n"), ["near", "northern", "none"]),
        (("profile", "use", "nor"), ["northern"]),
        (("profile", "delete", "se"), ["sealed"]),
        (("topic", "delete", "t", "--yes-on", "ne"), ["near"]),
    ],
)
def test_names_of_profiles_are_completed(words, found, monkeypatch, profiles):
    assert completed(*words, monkeypatch=monkeypatch) == found


def test_topics_are_those_of_the_servers_of_the_profile(monkeypatch, profiles):
    completion._write(completion._file("topics", "127.0.0.1:1"), ["of-near"])
    completion._write(completion._file("topics", "127.0.0.1:2"), ["of-northern"])
    asked = ("topic", "describe", "of")
    assert completed(*asked, monkeypatch=monkeypatch, bootstrap="") == ["of-near"]
    named = ("topic", "describe", "--profile", "northern", "of")
    assert completed(*named, monkeypatch=monkeypatch, bootstrap="") == ["of-northern"]


def test_names_for_a_profile_with_tls_are_never_asked_for_in_plain_text(monkeypatch, profiles):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5.0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = ("topic", "describe", "--profile", "sealed", "-b", address, "o")
        assert completed(*words, monkeypatch=monkeypatch) == []
        connection, _ = server.accept()
        with connection:
            sent = connection.recv(65_536)
        assert sent[:2] == TLS_HANDSHAKE
        assert b"kafka" not in sent and b"topic" not in sent


def test_a_damaged_file_of_profiles_completes_nothing(monkeypatch, profiles):
    profiles.write_text("[")
    assert completed("profile", "use", "n", monkeypatch=monkeypatch) == []
    assert completed("topic", "describe", "o", monkeypatch=monkeypatch) == []


# -- real shells ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("completion") / "data") as broker:
        address = f"127.0.0.1:{broker.port}"
        assert invoke("topic", "create", "orders-of-may", bootstrap=address)[0] == 0
        produced(broker, "orders-of-may", 1)
        reader = consumer(broker, "readers-of-may")
        reader.subscribe(["orders-of-may"])
        wait_until(lambda: reader.poll(0.2) is not None, "a record is read")
        reader.commit(asynchronous=False)
        reader.close()
        yield broker


@contextmanager
def terminal(argv, environment):
    """A shell on a terminal of its own; gives what types text and waits for an answer."""
    child, fd = pty.fork()
    if child == 0:
        os.execve(argv[0], argv, environment)
    shown = bytearray()

    def wait_for(text, seconds=30):
        end = time.monotonic() + seconds
        while text not in bytes(shown):
            assert time.monotonic() < end, bytes(shown)
            if select.select([fd], [], [], 0.5)[0]:
                shown.extend(os.read(fd, 65536))

    def type_in(text):
        del shown[:]
        os.write(fd, text)

    try:
        yield type_in, wait_for
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(fd)


def on_the_path(tools):
    """The command of an installation: a program on the PATH. Nothing is typed for it."""
    tools.mkdir()
    command = tools / "gateway"
    begin = "import sys; sys.argv[0] = 'gateway'; from gateway.__main__ import main; main()"
    command.write_text(f'#!/bin/sh\nexec {install.gateway_python()} -c "{begin}" "$@"\n')
    command.chmod(0o755)
    return b""


def as_a_function(shell):
    """The command of a source tree, as the tutorials define it: what is typed for it."""
    run = f"{install.gateway_python()} -m gateway"
    text = f"function gateway; {run} $argv; end\n"
    return (text if shell == "fish" else f'gateway() {{ {run} "$@"; }}\n').encode()


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "source-tree"])
@pytest.mark.parametrize(
    "shell",
    [
        "bash",
        pytest.param("zsh", marks=pytest.mark.proof),
        pytest.param("fish", marks=pytest.mark.proof),
    ],
)
def test_a_shell_completes_what_the_cluster_has(shell, installed, gateway, tmp_path):
    tools = tmp_path / "bin"
    defined = on_the_path(tools) if installed else as_a_function(shell)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb" if shell != "fish" else "xterm",
        "GATEWAY_BOOTSTRAP": f"127.0.0.1:{gateway.port}",
        "PS1": "ready> ",
    }
    argv = {
        "bash": ["/bin/bash", "--norc", "--noprofile", "-i"],
        "zsh": [install.shell("zsh"), "-f", "-i"] if shell == "zsh" else [],
        "fish": [install.shell("fish"), "--no-config", "-i"] if shell == "fish" else [],
    }[shell]
    with terminal(argv, environment) as (type_in, wait_for):
        setup = {
            "bash": b'eval "$(gateway completion bash)"; echo set-up-$((40+2))\n',
            "zsh": b'autoload -Uz compinit; compinit -u; eval "$(gateway completion zsh)"; '
            b"echo set-up-$((40+2))\n",
            "fish": b"gateway completion fish | source; echo set-up-(math 40 + 2)\n",
        }[shell]
        type_in(defined + setup)
        wait_for(b"set-up-42")
        type_in(b"gateway topic desc\t")
        wait_for(b"describe")
        type_in(b" ord\t")
        wait_for(b"ers-of-may")
        type_in(b"\x15gateway group describe read\t")
        wait_for(b"ers-of-may")


def test_the_names_of_the_cluster_are_kept(gateway, monkeypatch, cache):
    address = f"127.0.0.1:{gateway.port}"
    words = ("group", "describe", "")
    found = completed(*words, monkeypatch=monkeypatch, bootstrap=address)
    (path,) = cache.glob("groups-*.json")
    assert found == json.loads(path.read_text()) == ["readers-of-may"]
