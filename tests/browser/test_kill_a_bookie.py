"""Goal: a reader of the page kills a bookie under load by a button, and watches the cluster repair.

Method: `gateway cluster up --http-write` with four bookies; a client writes all the time. Chromium
presses the button of one bookie, and reads the page until every entry has all its copies again.
"""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.browser.browser import Browser
from tests.peers.local_cluster import LocalCluster
from tests.peers.processes import free_port, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.cluster,
    pytest.mark.proof,
    pytest.mark.timeout(600),
]
REPAIRED = "every entry has all its copies"
REPAIR_S_MAX = 240.0
VICTIM = "bookie-1"


class Load:
    """A client that writes records until it is stopped, and counts their acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0
        self.failed: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(0.005):
            self._producer.produce("orders", f"order {number}".encode(), on_delivery=self._done)
            self._producer.poll(0)
            number += 1
        self._producer.flush(60)

    def _done(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(str(error))


@pytest.fixture
def cluster(tmp_path):
    """A cluster with a page, and where clients and browsers find it."""
    port = free_port()
    running = LocalCluster(tmp_path / "cluster", gateways=1, bookies=4)
    try:
        bootstrap = running.up("--http-port", str(port), "--http-write")["bootstrap"]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(60)
        yield bootstrap, f"http://127.0.0.1:{port}"
    finally:
        running.run("down")


def test_a_bookie_killed_by_its_button_is_repaired_under_load(cluster):
    bootstrap, origin = cluster
    with Load(bootstrap) as load, Browser() as browser, browser.tab(origin) as tab:
        wait_until(lambda: load.acknowledged > 200, "the load")
        tab.open("/cluster/processes")
        assert tab.violations() == []
        form = tab.page.locator(f"form[action='/cluster/processes/{VICTIM}/kill']")
        form.get_by_label("To confirm").fill(VICTIM)
        form.get_by_role("button").click()
        tab.page.locator(f"form[action='/cluster/processes/{VICTIM}/start']").wait_for()

        def says(words: str) -> bool:
            tab.open("/cluster")
            return words in tab.page.inner_text("main").lower()

        wait_until(lambda: not says(REPAIRED), "the page to show the loss", 60, pause_s=0.25)
        during = load.acknowledged
        wait_until(lambda: says(REPAIRED), "the repair", REPAIR_S_MAX, pause_s=1.0)
        assert load.acknowledged > during
    assert load.failed == []
