"""Goal: what `topic produce` counts and names is what is in the topic, however the server fails.

Method: the command in a process of its own, against a real gateway that stands still or refuses.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from fcntl import ioctl
from termios import FIONREAD

import pytest

from tests.gateway.produce_command import created, end_offset, produce, running, values
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

REFUSED_MS = 9 * 10**15  # a time that the server refuses


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), ["--no-auto-create"]) as broker:
        yield broker


class Input:
    """A pipe whose reading end is kept, so that a test sees what was read."""

    def __init__(self):
        self.read_end, self._write_end = os.pipe()

    def end(self, data):
        """Write the last bytes."""
        os.write(self._write_end, data)
        os.close(self._write_end)

    def send(self, data):
        """Return once the command has read these bytes."""
        os.write(self._write_end, data)
        wait_until(lambda: not self._unread(), "the input to be read")

    def _unread(self):
        return int.from_bytes(ioctl(self.read_end, FIONREAD, bytes(4)), sys.byteorder)

    def close(self):
        os.close(self.read_end)


def stands(child):
    """Return whether the command still waits after a moment."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.5)
    return child.returncode is None


@pytest.mark.parametrize("acks", ["all", "1"])
@pytest.mark.parametrize("lines", [[b"two\n"], [b"two\n", b"three\n"]], ids=["one", "two"])
def test_ctrl_c_during_the_last_flush_writes_no_record_twice(gateway, acks, lines):
    topic = created(gateway)
    with closing(Input()) as pipe:
        words = (gateway, topic, "--acks", acks)
        with running(*words, stdin=pipe.read_end) as child:
            pipe.send(b"one\n")
            wait_until(lambda: end_offset(gateway, topic) == 1, "the first record")
            gateway.pause()
            try:
                for line in lines:
                    pipe.send(line)
                pipe.end(b"last\n")
                assert stands(child)
                child.send_signal(signal.SIGINT)
                assert stands(child)
            finally:
                gateway.resume()
            assert child.wait(30) == 130
            errors = child.stderr.read().decode()
    found = values(gateway, topic)
    assert errors == f"wrote {len(found)} records to {topic}\n"
    assert found == [b"one", *(line[:-1] for line in lines), b"last"][: len(found)]
    assert len(found) >= 3


@pytest.mark.parametrize("words", [(), ("--acks", "1"), ("--compression", "zstd")])
@pytest.mark.parametrize("bad", [1, 101, 8999])
def test_records_before_a_refused_one_are_written_and_none_after_it(gateway, words, bad):
    topic = created(gateway)
    lines = [{"value": str(number), "timestamp": 5} for number in range(1, 9001)]
    lines[bad - 1]["timestamp"] = REFUSED_MS
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    code, out, errors = produce(gateway, topic, "-i", "jsonl", *words, data=data)
    reason = f"{topic} refused the record of line {bad}: INVALID_TIMESTAMP"
    assert (code, errors) == (1, f"gateway: {reason}\n")
    assert out.startswith(f"wrote {bad - 1} record")
    assert values(gateway, topic) == [b"%d" % number for number in range(1, bad)]
