"""Checks of `gateway doctor` that ask servers in Kafka's protocol, or look at this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from gateway.admin import doctor_local as local
from gateway.admin.client import AdminClient, Broker, Place, Unreachable
from gateway.admin.doctor_facts import (
    Answer,
    ClockReading,
    Files,
    Lag,
    Level,
    NoLeader,
    Release,
)
from gateway.admin.doctor_findings import Finding, listed, unknown, worst
from gateway.admin.doctor_judgement import (
    judge_address,
    judge_bootstrap,
    judge_clocks,
    judge_dns,
    judge_files,
    judge_lag,
    judge_leaders,
    judge_sync,
    judge_versions,
)
from gateway.admin.doctor_settings import (
    broker_configs,
    idle_of_brokers,
    idle_of_topics,
    topic_configs,
)
from gateway.admin.doctor_site import (
    ANSWER_S,
    CONNECT_S,
    EXPECTED,
    Report,
    Site,
    address_of,
    hosts_of,
    lacks,
)
from gateway.admin.doctor_storage_judgement import judge_settings
from gateway.admin.doctor_storage_probes import answered_bookies
from gateway.admin.features import list_features
from gateway.admin.groups import committed, list_groups
from gateway.admin.lag_seconds import seconds_behind
from gateway.admin.topics import LATEST, offsets
from gateway.wire.client_link import Link, Security
from ledger.command_line.version import __version__

OURS_ONLY: Final = "the servers do not report it: they are Apache Kafka's, or of an older release"
_METADATA: Final = 3
_LAGS_MAX = 200  # partitions whose lag is given in seconds
_EMPTY_STATES = ("Empty", "Dead", "")


async def check_bootstrap(site: Site) -> Finding:
    names = [Broker(-1, host, port) for host, port in site.servers]
    answers = (_answer_of(each, site.security()) for each in names)
    return judge_bootstrap(await asyncio.gather(*answers))


async def check_address(site: Site) -> Finding:
    view = await site.cluster.get()
    answers = await asyncio.gather(*(_answer_of(each, site.security()) for each in view.brokers))
    return judge_address(answers, view.cluster_id)


async def _answer_of(broker: Broker, security: Security | None) -> Answer:
    """Ask for Metadata at the address of a broker. A bootstrap server has no node id yet."""
    name = str(broker) if broker.node_id >= 0 else f"{broker.host}:{broker.port}"
    link = Link(broker.host, broker.port, ANSWER_S, security=security)
    try:
        address_of(broker)
        await link.open(CONNECT_S)
        fields: dict[str, Any] = {"topics": [], "allow_auto_topic_creation": False}
        answer = await link.send(_METADATA, fields)
    except EXPECTED as error:
        return Answer(name, str(error), fix=getattr(error, "fix", ""))
    finally:
        await link.close()
    return Answer(name, None, answer.cluster_id)


async def check_dns(site: Site) -> Finding:
    """Look up the hosts that were given, those of brokers, of ZooKeeper and of bookies."""
    names = [host for host, _ in site.servers]
    for more in (_broker_hosts, _metadata_hosts, _bookie_hosts):
        try:
            names += await more(site)
        except EXPECTED:
            continue  # other checks report it
    return judge_dns(await local.look_up(names))


async def _broker_hosts(site: Site) -> list[str]:
    brokers = (await site.cluster.get()).brokers
    return [each.host for each in brokers if _has_address(each)]


def _has_address(broker: Broker) -> bool:
    try:
        return bool(address_of(broker))
    except Unreachable:
        return False  # the check `address` reports it


async def _metadata_hosts(site: Site) -> list[str]:
    return hosts_of(await site.metadata.get())


async def _bookie_hosts(site: Site) -> list[str]:
    storage = await site.storage.get()
    return [info.host for info in storage.bookies.registered().values()]


async def check_clocks(site: Site) -> Finding:
    reports = await site.reports.get()
    readings = [_clock_of(report) for report in reports]
    if any(report.fields for report in reports):
        readings += await _clocks_of_bookies(site)
    return judge_clocks(readings)


async def _clocks_of_bookies(site: Site) -> list[ClockReading]:
    try:
        bookies = await answered_bookies(site)
    except EXPECTED as error:
        return [ClockReading("bookies", None, reason=str(error))]
    return [
        ClockReading(
            f"bookie {each.name}",
            each.ahead_ms,
            each.within_ms,
            each.fault or "its release reports no clock",
        )
        for each in bookies
    ]


def _clock_of(report: Report) -> ClockReading:
    reason = report.fault or "reports no clock: it is Apache Kafka's, or of an older release"
    return ClockReading(report.name, report.ahead_ms, report.within_ms, reason)


async def check_sync(site: Site, wait_s: float) -> Finding:
    if site.data is None:
        return unknown("sync", "no directory was given", "pass --data DIR of a bookie here")
    return judge_sync(await local.sync_times(site.data, wait_s))


async def check_files(site: Site) -> Finding:
    found = [local.open_files()]
    try:
        reports = await site.reports.get()
    except EXPECTED:
        reports = []
    found += [
        Files(report.name, report.fields.get("files_max"), report.fields.get("files_open"))
        for report in reports
        if report.fields
    ]
    return judge_files(found)


async def check_versions(site: Site) -> Finding:
    reports = await site.reports.get()
    if not any(report.fields for report in reports):
        return unknown("versions", listed(await site.refusals()) or OURS_ONLY)
    releases = [Release("this command", __version__)]
    releases += [Release(each.name, each.fields.get("release")) for each in reports]
    try:
        bookies = await answered_bookies(site)
    except EXPECTED:
        bookies = []
    releases += [Release(f"bookie {each.name}", each.release or None) for each in bookies]
    async with site.client() as client:
        rows = await list_features(client)
    levels = [Level(each["feature"], each["finalized"], each["supported_max"]) for each in rows]
    return judge_versions(releases, levels)


async def check_leaders(site: Site) -> Finding:
    topics = (await site.cluster.get()).topics
    partitions = [(topic.name, each) for topic in topics for each in topic.partitions]
    without = [
        NoLeader(topic, each.partition_index, each.error_code.name.upper())
        for topic, each in partitions
        if each.leader_id < 0
    ]
    offline = [
        NoLeader(topic.name, -1, topic.error_code.name.upper())
        for topic in topics
        if topic.error_code.value and not topic.partitions
    ]
    return judge_leaders(len(partitions) + len(offline), without + offline)


async def check_lag(site: Site) -> Finding:
    async with site.client() as client:
        groups = await list_groups(client)
        behind = await _behind(client, groups)
        most = sorted(behind, key=lambda each: each.records, reverse=True)
        lags = await _in_seconds(client, most[:_LAGS_MAX], site.clock.now_ms())
    return judge_lag(len(groups), lags, max(0, len(most) - _LAGS_MAX))


async def _behind(client: AdminClient, groups: Iterable[dict[str, Any]]) -> list[_Behind]:
    """Return the partitions in which a group is behind."""
    positions: dict[str, dict[Place, int]] = {}
    members: dict[str, bool] = {}
    for row in groups:
        name = row["group"]
        members[name] = row["state"] not in _EMPTY_STATES
        found = await committed(client, name)
        positions[name] = {place: each.offset for place, each in found.items()}
    wanted: dict[str, list[int]] = {}
    for topic, index in sorted({place for each in positions.values() for place in each}):
        wanted.setdefault(topic, []).append(index)
    ends = await offsets(client, wanted, LATEST) if wanted else {}
    return [
        _Behind(group, place, at, ends[place] - at, members[group])
        for group, each in positions.items()
        for place, at in each.items()
        if place in ends and at < ends[place]
    ]


async def _in_seconds(client: AdminClient, behind: list[_Behind], now_ms: int) -> list[Lag]:
    """Return the lags with seconds. Several groups may be at different places of a partition."""
    lags: list[Lag] = []
    left = list(behind)
    while left:
        turn: dict[Place, _Behind] = {}
        for each in left:
            turn.setdefault(each.place, each)
        found = await seconds_behind(client, {p: each.at for p, each in turn.items()}, now_ms)
        lags += [each.lag(found.get(place)) for place, each in turn.items()]
        chosen = {id(each) for each in turn.values()}
        left = [each for each in left if id(each) not in chosen]
    return lags


class _Behind:
    """A partition in which a group is behind."""

    __slots__ = ("at", "group", "members", "place", "records")

    def __init__(self, group: str, place: Place, at: int, records: int, members: bool) -> None:
        self.group = group
        self.place = place
        self.at = at
        self.records = records
        self.members = members

    def lag(self, behind_s: float | None) -> Lag:
        return Lag(self.group, *self.place, self.records, behind_s, self.members)


async def check_settings(site: Site) -> Finding:
    if not await site.is_ours():
        return unknown("settings", "of Apache Kafka, every setting has an effect")
    view = await site.cluster.get()
    async with site.client() as client:
        topics = await topic_configs(client, [each.name for each in view.topics])
    brokers: dict[str, list[Any]] = {}
    denied: list[Finding] = []
    for broker in view.brokers:
        try:
            async with site.client_of(broker) as client:
                found = await broker_configs(client, [broker.node_id])
        except Unreachable:
            continue  # the check `address` reports it
        brokers |= found
        if not found:
            text = f"gateway {broker.node_id}: {lacks('DESCRIBE_CONFIGS')}"
            denied.append(unknown("settings", text))
    return worst([judge_settings(idle_of_topics(topics) + idle_of_brokers(brokers)), *denied])
