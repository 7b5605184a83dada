"""Goal: archive, replay and audit run over S3 and over a REST catalog as docs/spark.md shows them.

Method: the documented commands as processes, with the ports and the credentials of a real S3 server
and of Iceberg's own REST catalog. Then the replay and the audit of the same archive. pyarrow reads
the bucket, PyIceberg the table; neither shares code with Spark or with us.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo import steps
from tests.demo.flights import flights
from tests.documents import code_blocks
from tests.house import read_sources
from tests.peers.gateway import Gateway
from tests.peers.s3 import KEY, SECRET
from tests.peers.spark import conf_words, environment
from tests.pipelines.proof_stores import IcebergRestStore, S3Store, Store

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1200)]

HERE = "tests/pipelines/test_store_jobs.py"
COUNT = 3000
JOB_S_MAX = 300


def documented(mark: str) -> list[str]:
    """Return the words of the documented archive command that contains `mark`."""
    (document,) = read_sources(["docs/spark.md"])
    (text,) = (
        block.text for block in code_blocks(document) if HERE in block.info and mark in block.text
    )
    lines = text.replace("\\\n", " ").strip().splitlines()
    return re.sub(r"^\S+ -m gateway job ", "", lines[-1]).split()


def run(work: Path, words: list[str]) -> str:
    """Run a job to its end in a process; it must exit with 0."""
    # The later of two settings applies: those of the document come after those of the tests.
    settings = [*conf_words(work / "spark"), "--master", "local[2]"]
    argv = [sys.executable, "-m", "gateway", "job", words[0], *settings, *words[1:]]
    secret = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    done = subprocess.run(
        argv,
        env={**os.environ, **environment(work / "spark"), **secret},
        capture_output=True,
        text=True,
        timeout=JOB_S_MAX,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("kind", [S3Store, IcebergRestStore])
def test_the_documented_commands_archive_replay_and_audit(kind: type[Store], tmp_path: Path):
    store = kind(tmp_path)
    produced = [each for each, _ in zip(flights(), range(COUNT), strict=False)]
    with Gateway(tmp_path / "data") as gateway, store:
        steps.create_topic(gateway.bootstrap)
        assert steps.produce(gateway.bootstrap, produced) == COUNT
        assert store.server is not None
        ports = {"9092": gateway.port, "9000": store.server.port, "8181": store.server.port}
        words = documented("s3a://" if kind is S3Store else "--format iceberg")
        for shown, real in ports.items():
            words = [word.replace(f":{shown}", f":{real}") for word in words]
        run(tmp_path, words)
        read = sorted(row for _, row in store.records())
        assert read == sorted((one.carrier, one.line, one.hour_ms) for one in produced)

        place = words[words.index("--to") + 1]
        conf = words[words.index("--conf") :]
        servers = ["--bootstrap", gateway.bootstrap]
        state = ["--state", str(tmp_path / "state")] if store.words else []
        target = ["--topic", steps.TOPIC, "--to-topic", "again", "--create", *state]
        run(tmp_path, ["replay", "--from", place, *store.words, *target, *servers, *conf])
        source = store.source(steps.TOPIC).replace(store.place, place)
        audited = run(tmp_path, ["audit", f"topic:{steps.TOPIC}", source, *servers, *conf])
        assert "\nEqual: " in audited
