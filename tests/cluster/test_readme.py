"""Goal: whoever copies docs/first-cluster.md into a terminal sees what it says.

Method: its blocks run in order in one shell, as written but for the ports and the directory, beside
a `make cluster`; stock clients go on while a gateway and a bookie are killed.
"""

from __future__ import annotations

import re
from itertools import pairwise

from tests.documents import code_blocks
from tests.gateway.test_readme import as_pattern, plain
from tests.house import ROOT, read_sources
from tests.peers import install
from tests.peers.compose import LocalCluster
from tests.peers.gateway import ports_in_a_row
from tests.peers.processes import Process, free_port

HERE = "tests/cluster/test_readme.py runs it"
SHOWN_PORTS = (9092, 9093, 9094)
SHOWN_DATA = "data/cluster"
CHAPTER_S_MAX = 280.0
START_S_MAX = 120.0
AT_THE_END = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"  # clients do not stay behind
BETWEEN = "--- next block ---"


def steps():
    """Each block to run, and what it must print."""
    (page,) = read_sources(["docs/first-cluster.md"])
    return [
        (block.text, after.text if after.info == "text" else None)
        for block, after in pairwise(code_blocks(page))
        if HERE in block.info
    ]


def test_the_page_of_a_first_cluster_does_what_it_says(tmp_path):
    install.kcat()
    script = f"\necho '{BETWEEN}'\n".join(text for text, _ in steps())
    ports = ports_in_a_row(len(SHOWN_PORTS))
    for shown, port in zip(SHOWN_PORTS, ports, strict=True):
        script = re.sub(rf"\b{shown}\b", str(port), script)
    script = f"{AT_THE_END}\n{script}".replace(SHOWN_DATA, str(tmp_path / "cluster"))
    quiet = {"MAKEFLAGS": "", "MAKELEVEL": "0"}  # a make that runs the tests is not meant
    (tmp_path / "cluster").mkdir()
    LocalCluster(tmp_path / "cluster", ports[0], zookeeper_port=free_port()).write_env()
    place = [f"PORT={ports[0]}", f"DATA={tmp_path}"]
    make = Process(["make", "-C", str(ROOT), "cluster", *place], tmp_path / "make.log", quiet)
    try:
        make.wait_output("cluster started", START_S_MAX)
        errors = tmp_path / "terminal.err"
        words = ["bash", "-euo", "pipefail", "-c", script]
        terminal = Process(words, tmp_path / "terminal.log", errors=errors)
        try:
            terminal.wait_exit(CHAPTER_S_MAX)
        finally:
            terminal.stop()
        complaints = errors.read_text()
        assert terminal.exit_code == 0, terminal.output()[-3000:] + complaints[-3000:]
        # librdkafka may report that a gateway was killed.
        assert all(re.match(r"%\d\|", line) for line in complaints.splitlines()), complaints
        printed = terminal.output().split(f"{BETWEEN}\n")
        for (_, shown), output in zip(steps(), printed, strict=True):
            if shown is not None:
                assert re.fullmatch(as_pattern(plain(shown)), plain(output)), output
        for name in ("gateway-2", "bookie-1"):
            assert f"{name} ended with -9, started again" in make.output()
    finally:
        make.kill()
