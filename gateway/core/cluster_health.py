"""Judges the health of a cluster by facts that were read from it. Pure.

Each check has a result: `ok`, `fail` with a finding and what to do, or `unknown` if a fact is
missing. A check that finds several faults has a row for each, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
SILENT: Final = "silent"
"""The status of a bookie that is registered and does not answer."""
DISK_USED_MAX: Final = 95  # percent; bookies take no entries above it
_SHOWN_MAX: Final = 10  # findings of one check
_NAMED_MAX: Final = 5  # partitions or ledgers that one finding names


class BrokerFacts(NamedTuple):
    """A gateway or broker of the metadata."""

    node_id: int
    address: str
    answers: bool


class DiskFacts(NamedTuple):
    """A disk or directory. `error` is the server's name of its failure."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    error: str | None = None


class LedgerFacts(NamedTuple):
    """What the ledger tier says."""

    bookies: Mapping[str, str]  # status by bookie: rw, ro, away or silent, perhaps with a remark
    copies_max: int  # of any topic
    widest_topic: str | None  # a topic with that many copies
    underreplicated: Sequence[int]
    repair_enabled: bool
    has_auditor: bool | None  # None where nothing repairs: all is in one process


class ClusterFacts(NamedTuple):
    """What the checks look at. None is unknown."""

    brokers: Sequence[BrokerFacts]
    leaderless: Mapping[str, Sequence[int]]  # partitions without a leader, by topic
    short: Mapping[str, Sequence[int]]  # partitions with fewer in-sync replicas than replicas
    disks: Sequence[DiskFacts]
    ledgers: LedgerFacts | None


class Check(NamedTuple):
    """One row of the result."""

    check: str
    result: str
    finding: str | None = None
    fix: str | None = None


def judge(facts: ClusterFacts) -> list[Check]:
    """Return the results of all checks, in a fixed order."""
    found: list[Check] = []
    for name, findings in (
        ("gateways", _brokers(facts)),
        ("leaders", _leaders(facts)),
        ("in-sync replicas", _replicas(facts)),
        ("copies", _copies(facts.ledgers)),
        ("repair", _repair(facts.ledgers)),
        ("bookies", _bookies(facts.ledgers)),
        ("disks", _disks(facts)),
    ):
        rows = [Check(name, *each) for each in findings]
        more = len(rows) - _SHOWN_MAX
        if more > 0:
            rows[_SHOWN_MAX:] = [Check(name, FAIL, f"{more} more of these", rows[0].fix)]
        found += rows or [Check(name, OK)]
    return found


_Finding = tuple[str, str | None, str | None]  # result, finding, fix
_NO_LEDGERS: Final[_Finding] = (
    UNKNOWN,
    "the ledgers are not within reach from here, or the server has none",
    "run it on a machine that reaches ZooKeeper and the bookies; Apache Kafka has no ledgers, and"
    " `gateway dev --secure` shows none",
)


def _brokers(facts: ClusterFacts) -> Iterator[_Finding]:
    for each in facts.brokers:
        if not each.answers:
            text = f"node {each.node_id} at {each.address} does not answer"
            yield FAIL, text, "start it again, or make its advertised address reachable from here"


def _leaders(facts: ClusterFacts) -> Iterator[_Finding]:
    for topic, partitions in facts.leaderless.items():
        text = f"topic {topic} has no leader for partition {_listed(partitions)}"
        yield FAIL, text, "start a gateway, or wait for a takeover; see the gateways' logs"


def _replicas(facts: ClusterFacts) -> Iterator[_Finding]:
    for topic, partitions in facts.short.items():
        text = f"topic {topic} lacks in-sync replicas of partition {_listed(partitions)}"
        yield FAIL, text, "start the brokers that have the missing replicas"


def _copies(ledgers: LedgerFacts | None) -> Iterator[_Finding]:
    if ledgers is None:
        yield _NO_LEDGERS
    elif ledgers.underreplicated:
        count = len(ledgers.underreplicated)
        what = "1 ledger lacks" if count == 1 else f"{count} ledgers lack"
        text = f"{what} copies: {_listed(ledgers.underreplicated)}"
        first = ledgers.underreplicated[0]
        yield FAIL, text, f"wait for the repair; `gateway ledger why {first}` explains one"


def _repair(ledgers: LedgerFacts | None) -> Iterator[_Finding]:
    if ledgers is None:
        yield _NO_LEDGERS
        return
    if not ledgers.repair_enabled:
        yield FAIL, "repair is disabled in this cluster", "enable it again"
    if ledgers.has_auditor is False:
        yield FAIL, "no auditor runs: lost copies stay lost", "start `bookie audit`"


def _bookies(ledgers: LedgerFacts | None) -> Iterator[_Finding]:
    if ledgers is None:
        yield _NO_LEDGERS
        return
    for name, status in ledgers.bookies.items():
        if status.startswith("away"):
            fix = f"start it again, or remove it with `gateway bookie decommission {name}`"
            yield FAIL, f"bookie {name} is away", fix
        elif status == SILENT:
            yield FAIL, f"bookie {name} does not answer", "start it again, or make it reachable"
        elif status.startswith("ro"):
            yield FAIL, f"bookie {name} is read-only", "free or add disk space, or start it anew"
    writable = sum(status.startswith("rw") for status in ledgers.bookies.values())
    if writable < ledgers.copies_max:
        text = f"{writable} bookies take entries, and topic {ledgers.widest_topic} has "
        yield FAIL, f"{text}{ledgers.copies_max} copies", "start more bookies"


def _disks(facts: ClusterFacts) -> Iterator[_Finding]:
    known = False
    for disk in facts.disks:
        if disk.error is not None:
            yield FAIL, f"{disk.name} failed: {disk.error}", "replace the disk, then start it anew"
            continue
        if not disk.total_bytes or disk.free_bytes is None or disk.free_bytes < 0:
            continue
        known = True
        used = 100 - 100 * disk.free_bytes / disk.total_bytes
        if used > DISK_USED_MAX:
            text = f"{disk.name} is {used:.0f}% full; no entries are taken above {DISK_USED_MAX}%"
            yield FAIL, text, "free or add disk space, or lower retention.ms or retention.bytes"
    if not known and all(disk.error is None for disk in facts.disks):
        yield UNKNOWN, "no server reports the size of its disks", None


def _listed(numbers: Sequence[int]) -> str:
    more = len(numbers) - _NAMED_MAX
    shown = ", ".join(map(str, numbers[:_NAMED_MAX]))
    return f"{shown} and {more} more" if more > 0 else shown
