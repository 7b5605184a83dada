"""Goal: a command that cannot be undone asks on a terminal for the name of what it deletes.

Method: the commands in processes of their own, on a pseudo-terminal, against one real gateway.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest
from confluent_kafka import TopicPartition

from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers import install
from tests.peers.gateway import Gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    with Gateway(tmp_path_factory.mktemp("data")) as broker:
        yield broker


def on_terminal(answer, *words):
    """Return the exit code, stdout and what the terminal shows, once `answer` was typed."""
    ours, theirs = os.openpty()
    argv = [install.gateway_python(), "-m", "gateway", *words]
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        argv, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # EIO at the end: nothing holds the other side
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    return done.returncode, done.stdout.decode(), shown.decode()


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (("topic", "truncate", "NAME", "--to", "end", "-p", "0"), "0         3"),
        (("topic", "delete", "NAME"), "Deleted topic NAME."),
        (("group", "delete", "NAME"), "Deleted group NAME."),
    ],
    ids=lambda part: part[1] if isinstance(part, tuple) else "",
)
def test_a_terminal_is_asked_for_the_name(gateway, words, result):
    name = f"of-{words[0]}-{words[1]}"
    bootstrap = f"127.0.0.1:{gateway.port}"
    assert invoke("topic", "create", name, bootstrap=bootstrap)[0] == 0
    produced(gateway, name, 3)
    reader = consumer(gateway, name)
    reader.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    reader.close()
    argv = [*(name if word == "NAME" else word for word in words), "-b", bootstrap]

    code, out, shown = on_terminal("another", *argv)
    assert (code, out) == (2, "")
    assert f"Type {name} to do it: " in shown
    assert f"nothing was done: the answer was not {name}" in shown

    code, out, shown = on_terminal(name, *argv)
    assert (code, "nothing was done" in shown) == (0, False), shown
    assert out.rstrip().endswith(result.replace("NAME", name))


def test_a_hostile_name_is_one_line_of_the_question_and_can_be_typed_as_shown(gateway):
    name, shown = "r\x1b[31m\nevil\r", "r\\x1b[31m\\nevil\\r"
    bootstrap = f"127.0.0.1:{gateway.port}"
    reader = consumer(gateway, name)
    assert invoke("topic", "create", "of-hostile", bootstrap=bootstrap)[0] == 0
    produced(gateway, "of-hostile", 1)
    reader.commit(offsets=[TopicPartition("of-hostile", 0, 1)], asynchronous=False)
    reader.close()
    code, out, terminal = on_terminal(shown, "group", "delete", name, "-b", bootstrap)
    assert f"Type {shown} to do it: " in terminal and "\x1b" not in terminal
    assert terminal.count("\n") == 2  # what was typed, and one line of the question
    assert code == 0, (out, terminal)
