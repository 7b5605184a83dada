"""The page of a cluster that `gateway cluster up` started, with fixed content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from confluent_kafka import Producer

from tests.browser.rig import Content
from tests.peers.local_cluster import LocalCluster
from tests.peers.processes import free_port, wait_until

BOOKIES = 4
POINTS = 6  # of a plot: a line, and not a dot
HISTORY_S_MAX = 180.0


class LocalPage(NamedTuple):
    """Where the cluster and its page are."""

    origin: str  # the address of the page, without a slash
    bootstrap: str


@contextmanager
def local_page(directory: Path) -> Iterator[LocalPage]:
    """Start one gateway and four bookies with fixed records. Yields their addresses."""
    port = free_port()
    cluster = LocalCluster(directory / "cluster", gateways=1, bookies=BOOKIES)
    try:
        found = cluster.up("--http-port", str(port), "--http-write")
        content = Content(found["bootstrap"], hostile=False)
        origin = f"http://127.0.0.1:{port}"
        _write_until_plots_have_lines(found["bootstrap"], origin)
        yield LocalPage(origin, found["bootstrap"])
        content.close()
    finally:
        cluster.run("down")


def _write_until_plots_have_lines(bootstrap: str, origin: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})

    def has_points() -> bool:
        for number in range(40):
            producer.produce("invoices", f"invoice {number}".encode())
        producer.flush(60)
        with urlopen(f"{origin}/api/v1/history?series=bytes_in", timeout=60) as answer:
            lines = json.load(answer)["lines"]
        known = [each for line in lines for each in line["points"] if each is not None]
        return len(known) >= POINTS

    wait_until(has_points, "points of plots", HISTORY_S_MAX, pause_s=0.5)
