"""One gateway with a page, with fixed records and groups, some of them hostile.

The topics and groups are those that EXAMPLES names. Times of records are fixed and lie in the past,
so their topics have no retention.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Self
from urllib.parse import quote

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.browser.hostile_text import TEXTS
from tests.browser.secure_content import add_secure_content, secure_options
from tests.peers.gateway import Gateway
from tests.peers.processes import Lifecycle

RECORDS_AT_MS = 1_777_550_400_000  # 2026-04-30 12:00 UTC
ORDERS = 120
_CITIES = ("Oslo", "Lima", "Cork", "Kyiv", "Graz")
_ADDRESS = re.compile(r"page: (http://\S+?)/?\s")
_WAIT_S_MAX = 60.0

# A path of each page of gateway/http/rows.py, by its name.
EXAMPLES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages",
    "record": "/topics/orders/0/1",
    "groups": "/groups",
    "group": "/groups/billing",
    "group_history": "/groups/billing/history",
    "cluster": "/cluster",
    "processes": "/cluster/processes",
    "events": "/events",
    "spark": "/spark",
    "slow": "/slow",
    "plots": "/plots",
    "history": "/history?series=bytes_in",
    "security": "/security",
    "security_users": "/security/users",
    "security_acls": "/security/acls",
    "security_quotas": "/security/quotas",
    "security_audit": "/security/audit",
}
# Pages that a gateway outside `gateway cluster up` answers with 404.
OF_LOCAL_CLUSTERS = {"processes"}
# Pages that show hostile records, groups or clients, by their name.
HOSTILE_EXAMPLES = {
    "topics": "/topics?q=hostile",
    "topic": "/topics/hostile",
    "messages": "/topics/hostile/messages?from=oldest&limit=200",
    "record": "/topics/hostile/0/1",
    "groups": "/groups?limit=500",
    "group": f"/groups/{quote(TEXTS[1], safe='')}",
    "group_history": f"/groups/{quote(TEXTS[1], safe='')}/history",
    "events": "/events?limit=500",
    "slow": "/slow",
    "security": "/security",
    "security_acls": "/security/acls?limit=500",
    "security_quotas": "/security/quotas?limit=500",
    "security_audit": "/security/audit?limit=500",
}


class PageRig(Lifecycle):
    """A gateway process with its page. `origin` is the page's address, without a slash."""

    def __init__(self, directory: Path) -> None:
        options = ["--http-port", "0", "--http-write", *secure_options(directory)]
        self.gateway = Gateway(directory / "gateway", options)
        self.origin = ""
        self._content: Content | None = None

    def start(self) -> Self:
        self.gateway.start()
        try:
            self.gateway.process.wait_output("page: http", _WAIT_S_MAX)
            found = _ADDRESS.search(self.gateway.output())
            assert found is not None
            self.origin = found[1]
            self._content = Content(self.gateway.bootstrap, hostile=True)
            add_secure_content(self.gateway.bootstrap, TEXTS[1::25])
        except BaseException:
            self.gateway.kill()
            raise
        return self

    def stop(self) -> None:
        if self._content is not None:
            self._content.close()
        self.gateway.stop()


class Content:
    """Fixed topics, records and groups of a cluster, and perhaps hostile ones."""

    def __init__(self, bootstrap: str, *, hostile: bool) -> None:
        self._bootstrap = bootstrap
        # Joined the group of TEXTS[1] if there are hostile ones.
        self._member: Consumer | None = None
        names = {"orders": 3, "invoices": 1, **({"hostile": 1} if hostile else {})}
        kept = {"retention.ms": "-1"}
        topics = [NewTopic(name, count, config=kept) for name, count in names.items()]
        admin = AdminClient(self._settings())
        for future in admin.create_topics(topics).values():
            future.result(_WAIT_S_MAX)
        producer = Producer(self._settings(**{"linger.ms": 5}))
        _produce_orders(producer)
        if hostile:
            _produce_hostile(producer)
        assert producer.flush(_WAIT_S_MAX) == 0
        self._commit("billing", {0: 40, 1: 31, 2: 12})
        if hostile:
            for text in TEXTS[::25]:
                self._commit(text, {0: 1})
            self._join(TEXTS[1])

    def close(self) -> None:
        """Leave the group."""
        if self._member is not None:
            self._member.close()

    def _settings(self, **more: object) -> dict[str, object]:
        return {"bootstrap.servers": self._bootstrap, **more}

    def _commit(self, group: str, offsets: dict[int, int]) -> None:
        consumer = Consumer(self._settings(**{"group.id": group, "enable.auto.commit": False}))
        try:
            consumer.commit(
                offsets=[TopicPartition("orders", *each) for each in offsets.items()],
                asynchronous=False,
            )
        finally:
            consumer.close()

    def _join(self, name: str) -> None:
        """Let a client with this id be a member of a group with this id."""
        settings = {"group.id": name, "client.id": name, "enable.auto.commit": False}
        self._member = Consumer(self._settings(**settings))
        self._member.subscribe(["hostile"])
        self._member.poll(0.5)


def _produce_orders(producer: Producer) -> None:
    for number in range(ORDERS):
        order = {"id": number, "city": _CITIES[number % 5], "total": number * 7 % 113}
        producer.produce(
            "orders",
            json.dumps(order),
            f"order-{number}",
            number % 3,
            timestamp=RECORDS_AT_MS + number * 1_000,
            headers=[("trace", f"{number:08x}")],
        )


def _produce_hostile(producer: Producer) -> None:
    for number, text in enumerate(TEXTS):
        producer.produce(
            "hostile",
            text.encode(),
            text.encode(),
            timestamp=RECORDS_AT_MS + number,
            headers=[(text.replace("\x00", ""), text.encode())],
        )
