"""Goal: a reader of docs/tutorials/lose-a-bookie.md sees what it says: no record is lost.

Method: its blocks run in order, as written but for ports and the directory; they start a cluster,
kill a bookie under load, and wait until every copy is there again.
"""

from __future__ import annotations

import re

import pytest

from tests.documents import code_blocks
from tests.gateway.test_readme import check_printed, run_text
from tests.house import read_sources
from tests.peers.local_cluster import LocalCluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.cluster,
    pytest.mark.proof,
    pytest.mark.timeout(600),
]
HERE = "tests/cluster/test_tutorials.py runs it"
GATEWAYS, BOOKIES = 3, 4  # the defaults of `gateway cluster up`
BLOCK_S_MAX = 240.0


def steps():
    (page,) = read_sources(["docs/tutorials/lose-a-bookie.md"])
    blocks = code_blocks(page)
    return [
        (block, after.text if after.info == "text" else None)
        for block, after in zip(blocks, [*blocks[1:], blocks[0]], strict=True)
        if HERE in block.info
    ]


def test_no_record_is_lost_with_a_bookie_and_its_copies_return(tmp_path):
    cluster = LocalCluster(tmp_path / "cluster", GATEWAYS, BOOKIES)
    around = {**cluster.environment, "GATEWAY_CLUSTER_DATA": str(cluster.directory)}
    try:
        for number, (block, shown) in enumerate(steps()):
            text = block.text.replace("data/cluster", str(cluster.directory))
            if not number:
                text = re.sub("cluster up$", f"cluster up --port {cluster.port}", text, flags=re.M)
            printed = run_text(text, block, tmp_path, around, BLOCK_S_MAX)
            check_printed(printed, shown, block)
    finally:
        cluster.run("down")
