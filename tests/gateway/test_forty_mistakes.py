"""Goal: each mistake of users gets one line that names what to change, and the right exit code.

Method: the table of `mistake_rows.py`, which is also a document. Most rows run in this process;
pipes, a full disk, Ctrl-C and a terminal of 40 columns need processes. All share one gateway.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import termios
import threading
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from gateway.process.cli import program
from tests.batches import raw_batch, record
from tests.gateway import forty_mistakes
from tests.gateway.admin_commands import heeding, invoke
from tests.gateway.broken_broker import BrokenBroker
from tests.gateway.forty_mistakes import all_mistakes, matches
from tests.gateway.mistake_rows import LONG_NAME, SERVER, Server, Where
from tests.house import ROOT
from tests.peers import install
from tests.peers.gateway import Gateway

pytestmark = pytest.mark.process

TIMEOUT_S = 60
ROWS = all_mistakes()
CODES = re.findall(r"^\| (\d+) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("mistakes") / "data") as broker:
        words = ("topic", "create", "orders", "inbox", LONG_NAME, "-p", "1")
        code, _, errors = invoke(*words, bootstrap=broker.bootstrap)
        assert code == 0, errors
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for value in (b"first", b"\x1b[31mred", b"last"):
            producer.produce("orders", value, partition=0)
        assert producer.flush(60) == 0
        yield broker


# servers


class Peer:
    """A server that reads a request, then answers with `reply` and closes, or stands still."""

    def __init__(self, reply):
        self._reply = reply
        self.asked = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def _serve(self):
        link, _ = self._socket.accept()
        with link:
            link.recv(1)
            self.asked.set()
            if self._reply:
                link.sendall(self._reply)
                link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(TIMEOUT_S)
        self._socket.close()


@contextmanager
def server_of(row, gateway):
    """The server that the command of this row finds."""
    if row.server is Server.shared:
        yield gateway
        return
    made = {
        Server.http: lambda: Peer(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Server.silent: lambda: Peer(b""),
        Server.cut: lambda: BrokenBroker(raw_batch(record(0, 0, None, b"a")), cut=True),
    }
    with made[row.server]() as peer:
        yield peer


# ways to run a command


@contextmanager
def stdin_of(text, directory):
    """Standard input is a file with this text: also for code that reads the descriptor 0."""
    file = directory / "stdin"
    file.write_text(text)
    before = os.dup(0)
    try:
        with file.open() as opened:
            os.dup2(opened.fileno(), 0)
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def run_here(words, env, row, directory):
    with stdin_of(row.stdin, directory):
        done = CliRunner().invoke(program, words, env=env, prog_name="gateway")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def argv(words):
    return heeding([install.gateway_python(), "-m", "gateway", *words])


def run_process(words, env, row, directory):
    done = subprocess.run(
        argv(words), env=env, input=row.stdin, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    return done.returncode, done.stdout, done.stderr


def run_to_nobody(words, env, row, directory):
    reading, writing = os.pipe()
    os.close(reading)
    return _run_to(writing, words, env)


def run_to_full_disk(words, env, row, directory):
    return _run_to(os.open("/dev/full", os.O_WRONLY), words, env)


def _run_to(stdout, words, env):
    try:
        done = subprocess.run(
            argv(words), env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(stdout)
    return done.returncode, "", done.stderr


def run_on_terminal(words, env, row, directory):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with subprocess.Popen(
        argv(words), env=env, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        printed = b"".join(iter(lambda: _read_terminal(ours), b""))
        errors = process.stderr.read().decode()
        code = process.wait(TIMEOUT_S)
    os.close(ours)
    return code, printed.decode().replace("\r\n", "\n"), errors


def _read_terminal(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def run_interrupted(words, env, row, peer):
    """Ctrl-C comes when the command has printed all of `out`, or waits for an answer."""
    with subprocess.Popen(
        argv(words), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        printed = b""
        while len(printed) < len(row.out) and (piece := process.stdout.read(4096)):
            printed += piece
        if row.server is Server.silent:
            assert peer.asked.wait(TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, (printed + rest).decode(), errors.decode()


RUNNERS = {
    Where.here: run_here,
    Where.process: run_process,
    Where.terminal: run_on_terminal,
    Where.closed_pipe: run_to_nobody,
    Where.full: run_to_full_disk,
}


def environment(row, bootstrap, directory):
    """The variables of the command; None takes one away."""
    file = directory / "ledger-gateway" / "config.toml"
    if row.profiles:
        file.parent.mkdir()
        file.write_text(row.profiles)
        file.chmod(row.mode)
    ours = {name: None for name in os.environ if name.startswith("GATEWAY_")}
    ours |= {"COLUMNS": None, "NO_COLOR": None, "TERM": "xterm", "PYTHONUNBUFFERED": None}
    return {**ours, "XDG_CONFIG_HOME": str(directory), "GATEWAY_BOOTSTRAP": bootstrap, **row.env}


def outcome(row, gateway, directory):
    """Exit code, stdout and stderr of the command of this row."""
    with server_of(row, gateway) as peer:
        env = environment(row, gateway.bootstrap, directory)
        command = row.command.replace(f"--port {SERVER}", f"--port {gateway.port}")
        words = shlex.split(command.replace(SERVER, peer.bootstrap))
        if row.where is not Where.here:
            merged = {**os.environ, **env}
            env = {name: value for name, value in merged.items() if value is not None}
        if row.where is Where.interrupted:
            return run_interrupted(words, env, row, peer)
        return RUNNERS[row.where](words, env, row, directory)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title.replace(" ", "-"))
def test_a_mistake_gets_its_line_and_exit_code(row, gateway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, errors = outcome(row, gateway, tmp_path)
    assert matches(row.err and f"{row.err}\n", errors), errors
    assert matches(row.out, out), out
    assert code == row.code


def test_each_line_of_the_table_is_as_promised():
    """One line for people or an object for programs, and an exit code of errors.md."""
    assert len(ROWS) >= 40
    assert len({row.title for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert "\n" not in row.err
        assert str(row.code) in CODES
        if "-o json" in row.command:
            assert json.loads(row.err).keys() == {"error", "code"}
        else:
            assert row.err.startswith("gateway: ") or row.code in (0, 130, 141)


def test_the_document_is_written_from_the_table():
    assert forty_mistakes.differences() == []
