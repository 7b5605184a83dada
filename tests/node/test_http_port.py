"""Goal: bookies and auditors serve their counts and their health, and nothing can harm that port.

Method: the port by plain sockets; a bookie over the simulated disk; the list of under-replicated
ledgers in the simulated metadata store, which two processes report.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ledger.bookie.gc.scheduler import GcScheduler
from ledger.errors import MetadataUnavailable
from ledger.exposition import Buckets, Family
from ledger.ids import BookieId, LedgerId
from ledger.log import logger
from ledger.node.http_port import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    HttpPort,
    HttpUnavailable,
    start_http,
)
from ledger.node.node_metrics import AuditSamples, bookie_families, process_families
from ledger.ports.bookies import Status
from ledger.repair.entry_copier import RepairProgress
from ledger.repair.underreplicated_ledgers import RepairNote, UnderreplicatedLedgers
from tests.ledger.bookie_rig import started_bookie
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata


class Node:
    """What a port serves: reasons and samples that the test sets."""

    def __init__(self):
        self.reasons = []
        self.error = None

    def not_ready(self):
        return self.reasons

    async def families(self):
        if self.error is not None:
            raise self.error
        return [Family("bookie_x", "X.", (), [((), 7)])]


async def answer(http, said):
    reader, writer = await asyncio.open_connection(http.host, http.port)
    writer.write(said)
    whole = await reader.read()
    writer.close()
    head, _, body = whole.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else None, head.decode(), body.decode()


async def got(http, path, method="GET"):
    return await answer(http, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.mark.real_loop
async def test_it_serves_samples_and_health_and_nothing_else():
    node = Node()
    http = await start_http("127.0.0.1", 0, "bookie", node)
    status, head, body = await got(http, "/metrics?x=1")
    names = [each.name for each in text_string_to_metric_families(body)]
    assert (status, names[0]) == (200, "bookie_x")
    assert "process_resident_memory_bytes" in names
    assert "version=0.0.4" in head
    for path in ("/health", "/health/ready", "/health/live"):
        status, _, body = await got(http, path)
        assert (status, json.loads(body)) == (200, {"status": "ok", "reasons": []})
    assert (await got(http, "/"))[0] == 404
    assert (await got(http, "/metrics", "POST"))[0] == 405
    status, head, body = await got(http, "/metrics", "HEAD")
    assert (status, body) == (200, "")
    await http.stop()


@pytest.mark.real_loop
async def test_a_process_that_is_not_ready_says_why_and_is_alive():
    node = Node()
    node.reasons = ["it is starting"]
    http = await start_http("127.0.0.1", 0, "bookie", node)
    status, _, body = await got(http, "/health/ready")
    assert (status, json.loads(body)["reasons"]) == (503, ["it is starting"])
    assert (await got(http, "/health/live"))[0] == 200
    await http.stop()


@pytest.mark.real_loop
async def test_a_source_that_fails_is_left_out():
    node = Node()
    node.error = MetadataUnavailable("planted")
    http = await start_http("127.0.0.1", 0, "audit", node)
    status, _, body = await got(http, "/metrics")
    assert status == 200
    assert "bookie_x" not in body
    assert "process_cpu_seconds_total" in body
    await http.stop()


@pytest.mark.real_loop
@pytest.mark.parametrize("said", [b"\0" * 100 + b"\r\n\r\n", b"x" * (HEAD_BYTES_MAX + 1)])
async def test_bytes_that_are_no_http_get_no_page(said):
    http = HttpPort(list)
    await http.start("127.0.0.1", 0)
    status, _, _ = await answer(http, said)
    assert status in (None, 405)
    await http.stop()


@pytest.mark.real_loop
async def test_one_connection_too_many_is_closed():
    http = HttpPort(list)
    await http.start("127.0.0.1", 0)
    held = [await asyncio.open_connection(http.host, http.port) for _ in range(CONNECTIONS_MAX)]
    reader, writer = await asyncio.open_connection(http.host, http.port)
    assert await reader.read() == b""
    for each in (*held, (reader, writer)):
        each[1].close()
    await http.stop()


@pytest.mark.real_loop
async def test_a_port_that_is_taken_is_a_fault_and_none_is_none():
    first = HttpPort(list)
    await first.start("127.0.0.1", 0)
    with pytest.raises(HttpUnavailable, match=f"cannot listen on 127.0.0.1 port {first.port}"):
        await HttpPort(list).start("127.0.0.1", first.port)
    await first.stop()
    assert await start_http("127.0.0.1", None, "bookie", Node()) is None


# a bookie


def samples_of(families):
    return {(each.name, *labels): value for each in families for labels, value in each.samples}


async def test_a_bookie_counts_adds_and_reads_by_status_and_its_groups():
    async with started_bookie() as (rig, bookie):
        collector = GcScheduler(
            bookie, list, lambda _: True, interval_s=600, compaction_threshold=0, log=logger
        )
        for entry in range(3):
            assert await rig.add(1, entry, b"x" * 100) is Status.OK
        assert await rig.add(1, 0, b"other") is Status.BAD_REQUEST
        await bookie.read(1, 0)
        await bookie.read(1, 99)
        found = samples_of(await bookie_families(bookie, collector))
        assert found["bookie_adds_total", "OK"] == 3
        assert found["bookie_reads_total", "OK"] == 1
        assert found["bookie_reads_total", "NO_ENTRY"] == 1
        syncs, sizes = found["bookie_sync_seconds",], found["bookie_group_bytes",]
        assert isinstance(syncs, Buckets)
        assert sum(syncs.counts) == sum(sizes.counts) == bookie.groups
        assert sizes.total > 300
        stats = await bookie.stats()
        assert (stats.syncs, stats.sync_us) == (bookie.groups, round(syncs.total * 1e6))
        assert found["bookie_writable",] == 1


# an auditor


async def test_only_the_elected_auditor_reports_the_lists_of_the_cluster():
    store = SimMetadata()
    marks = UnderreplicatedLedgers(store, SimClock(), BookieId("audit-1"))
    await marks.prepare()
    for ledger in (1, 2, 3):
        await marks.mark(LedgerId(ledger), [BookieId("b1")])
    await marks.set_note(LedgerId(2), RepairNote(lost=((4, 9),)))
    both = [AuditSamples(marks, RepairProgress(ledgers=5)) for _ in range(2)]
    leader = samples_of(await both[0].families(leads=True, marked=3))
    other = samples_of(await both[1].families(leads=False, marked=0))
    assert leader["bookie_audit_underreplicated_ledgers",] == 3
    assert leader["bookie_audit_hopeless_ledgers",] == 1
    assert ("bookie_audit_underreplicated_ledgers",) not in other
    assert [each["bookie_audit_leader",] for each in (leader, other)] == [1, 0]
    assert leader["bookie_audit_repaired_ledgers_total",] == 5


async def test_a_note_is_read_once_a_minute_and_a_repaired_ledger_is_forgotten():
    store = SimMetadata()
    marks = UnderreplicatedLedgers(store, SimClock(), BookieId("audit-1"))
    await marks.prepare()
    await marks.mark(LedgerId(2), [BookieId("b1")])
    await marks.set_note(LedgerId(2), RepairNote(lost=((4, 9),)))
    samples = AuditSamples(marks, RepairProgress())
    assert (
        samples_of(await samples.families(leads=True, marked=0))["bookie_audit_hopeless_ledgers",]
        == 1
    )
    mark = await marks.get(LedgerId(2))
    assert await marks.mark_replicated(mark)
    found = samples_of(await samples.families(leads=True, marked=0))
    assert found["bookie_audit_hopeless_ledgers",] == 0


def test_a_process_has_the_usual_figures():
    found = samples_of(process_families())
    assert found["process_resident_memory_bytes",] > 1_000_000
    assert found["process_cpu_seconds_total",] > 0
    assert found["process_open_fds",] > 0
