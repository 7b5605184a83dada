"""A gateway with pages, and records that clients wrote: hostile ones, and many plain ones."""

from __future__ import annotations

import json
from contextlib import contextmanager
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.http.record_search import Bounds
from gateway.http.views import messages, record_changes
from tests.gateway.page_rig import PageRig, ask

FIRST_MS = 1_600_000_000_000
# A machine that stands still for seconds ends no search.
UNHURRIED = Bounds(seconds=3_600.0)
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "'><iframe srcdoc='<script>1</script>'>",
    "</pre></td><form action=//evil><input name=token>",
    "</title><script>1</script>",
    "{{ site.token }}",
    "{% raw %}<b>",
    "javascript:alert(1)",
    "]]><!--<b>-->",
    "\x00\x1b[31m<hr>\u202e<a href=//evil>",
    "&lt;script&gt;&#x3C;b&#x3E;",
    "<style>*{display:none}</style>",
    "<base href=//evil/>",
    "<math><mi//xlink:href='data:x,<script>1</script>'>",
    "\ufeff<meta http-equiv=refresh content=0>",
    "<a onclick=x hx-get=/x data-stream=/x>",
    "\u2028<object data=x>",
    "' autofocus onfocus='alert(1)",
    '" style="position:fixed" class="x',
]
"""Texts that clients may choose. 200 of them are made by `hostile`."""


def hostile(number):
    """One of 200 texts."""
    return f"{HOSTILE[number % len(HOSTILE)]} {number}"


class Pages:
    """The rig, its ports by kind, and what asks them."""

    def __init__(self, rig):
        self.rig = rig
        self.plain = rig.serve()
        self.hidden = rig.serve(hide_values=True)
        self.writing = rig.serve(write=True)
        for port in (self.plain, self.hidden, self.writing):
            assert ask(port, "/health/live").status == 200  # the first answer makes its site

    @property
    def bootstrap(self):
        return self.rig.bootstrap

    def site(self, port):
        """The site behind a port."""
        return self.rig.applications[port].site

    def create(self, name, partitions=1, copies=1, **configs):
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        kept = {"retention.ms": "-1", **configs}
        for made in admin.create_topics([NewTopic(name, partitions, copies, config=kept)]).values():
            made.result(60)

    def write(self, topic, records, **settings):
        """Write rows of key, value, headers and partition; times rise by a second."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})
        for number, (key, value, headers, partition) in enumerate(records):
            at_ms = FIRST_MS + 1000 * number
            producer.produce(topic, value, key, partition, headers=headers or None, timestamp=at_ms)
        assert producer.flush(60) == 0


@contextmanager
def pages(directory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "BOUNDS", UNHURRIED)
        patch.setattr(record_changes, "COPY_BOUNDS", UNHURRIED)
        with PageRig(directory / "data", ledger_port=0, any_ledger_port=True) as rig:
            yield Pages(rig)


def path_of(topic, page, **query):
    text = "?" + urlencode(query) if query else ""
    return f"/topics/{quote(topic, safe='')}/{page}{text}"


def found(port, path):
    """What the JSON of a page has. It must be there."""
    answer = ask(port, "/api/v1" + path)
    assert answer.status == 200, answer.text
    return json.loads(answer.body)


def refused(port, path):
    """Status, code and message of the JSON of a page that is refused."""
    answer = ask(port, "/api/v1" + path)
    error = json.loads(answer.body)["error"]
    return answer.status, error["code"], error["message"]


def posted(port, site, path, **fields):
    """Status and object of a change, sent as a form of a page would send it."""
    body = urlencode({"token": site.token, **fields}).encode()
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Sec-Fetch-Site": "same-origin",
    }
    answer = ask(port, path, "POST", headers, body)
    return answer.status, json.loads(answer.body)


class Elements(HTMLParser):
    """The elements of a page, and all names of attributes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags = {}
        self.attributes = set()
        self.urls = []
        self.texts = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        self.urls += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.tags["!--"] = 1

    def handle_decl(self, decl):
        self.tags["!" + decl.split()[0].lower()] = 1


def check_harmless(text):
    """No element, attribute or address of a client is in the page."""
    seen = Elements(text)
    forbidden = {"img", "iframe", "object", "base", "style", "math", "hr", "b", "mi", "!--"}
    assert not forbidden & set(seen.tags), forbidden & set(seen.tags)
    assert seen.tags.get("meta", 0) <= 4 and seen.tags.get("title", 0) <= 2
    bad = {name for name in seen.attributes if name.startswith(("on", "hx-get"))}
    assert not bad | (seen.attributes & {"style", "autofocus", "srcdoc"}), bad
    assert all(url.startswith(("/", "?", "#", "data:,")) for url in seen.urls), seen.urls
    assert not any(url.startswith("//") for url in seen.urls)
    assert seen.tags.get("script", 0) == text.count('<script src="/static/')
    return seen
