"""Goal: `gateway dev` serves its page where it says, and Kafka all the same if it cannot.

Method: real processes; the modules that a start loads are counted in one of them.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys

from gateway.process import supervisor
from gateway.process.serve import TABLE, serve
from ledger.command_line.program import flags_of
from ledger.command_line.settings import Settings
from tests.gateway.page_rig import ask
from tests.gateway.test_dev import START_S_MAX, ended, line_of
from tests.gateway.test_dev import ask as ask_kafka
from tests.peers.processes import Process

PLACE = ["--port", "0", "--ledger-port", "0"]


@contextlib.contextmanager
def started(data, *words, interpreter=()):
    """A gateway that serves, and its Kafka port."""
    argv = [sys.executable, *interpreter, "-m", "gateway", "dev", *PLACE]
    argv += ["--data", str(data), *words]
    process = Process(argv, data.with_name("log"), errors=data.with_name("errors"))
    try:
        port = int(re.search(r":(\d+) ", line_of(process, 1))[1])
        yield process, port
    finally:
        process.stop(START_S_MAX)


def imported(data):
    """The modules that were imported so far."""
    text = data.with_name("errors").read_text()
    return {line.rpartition("|")[2].strip() for line in text.splitlines() if "|" in line}


def test_a_page_is_imported_at_its_first_request_and_not_before(tmp_path):
    data = tmp_path / "data"
    shown = ("-X", "importtime")
    with started(data, "--http-port", "0", interpreter=shown) as (process, _):
        line = line_of(process, 4)
        found = re.fullmatch(r"page: http://127\.0\.0\.1:(\d+)/", line)
        assert found, line
        before = imported(data)
        assert "asyncio" in before
        assert not [name for name in before if name.startswith("gateway.http")]
        assert not {"starlette", "uvicorn", "jinja2", "h11"} & before
        answer = ask(int(found[1]), "/")
        assert answer.status == 200
        assert "<h1>" in answer.text
        assert {"starlette", "uvicorn", "jinja2", "h11", "gateway.http.guard"} <= imported(data)


def test_kafka_is_served_if_the_default_port_of_the_page_is_taken(tmp_path):
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another program has it, which is as good
            stack.enter_context(socket.create_server(("127.0.0.1", 9080)))
        data = tmp_path / "data"
        with started(data) as (process, port):
            assert ask_kafka(port, 18, 0, {}).error_code == 0
            assert "page: " not in process.output()
    assert data.with_name("errors").read_text() == (
        "gateway: http-port 9080: in use on 127.0.0.1; there is no web page (--http-port takes "
        "another port, --no-http-port none)\n"
    )


def test_a_port_of_the_page_that_is_named_must_be_free(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [*PLACE, "--data", str(tmp_path / "data"), "--http-port", str(port)]
        code, _, errors = ended("dev", *words)
    assert code == 78
    assert errors == (
        f"gateway: http-port {port}: cannot listen there on 127.0.0.1: Address already in use\n"
    )


def test_a_certificate_that_cannot_be_used_ends_the_start(tmp_path):
    for name in ("cert", "key"):
        (tmp_path / name).write_text("no PEM")
        (tmp_path / name).chmod(0o600)
    words = ["--http-cert", str(tmp_path / "cert"), "--http-key", str(tmp_path / "key")]
    code, _, errors = ended(
        "dev", *PLACE, "--data", str(tmp_path / "data"), "--http-port", "0", *words
    )
    assert code == 78
    assert errors.startswith(f"gateway: --http-cert {tmp_path}/cert: cannot be used: ")
    assert errors.count("\n") == 1


def test_workers_have_ports_of_pages_in_a_row():
    def ports(first):
        lines = supervisor.commands(["--zookeeper", "z:1"], 2, 0, 9092, None, first)
        return [
            Settings(flags_of(serve, line[line.index("serve") + 1 :]), TABLE, {})["http-port"]
            for line in lines
        ]

    assert ports(9080) == [9080, 9081]
    assert ports(0) == [0, 0]
    assert ports(None) == [None, None]


def test_help_loads_nothing_of_the_page():
    code = (
        "import sys; from gateway.process import dev, serve; "
        "print([name for name in sys.modules if name.startswith('gateway.http')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"[]\n"
