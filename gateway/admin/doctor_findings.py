"""The checks of `gateway doctor` by name, and the form of what they find. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

_NAMED_MAX: Final = 3  # things that a finding names; the others are counted


class State(StrEnum):
    """The result of a check."""

    ok = "ok"
    warn = "warn"
    fail = "fail"
    unknown = "unknown"


class Finding(NamedTuple):
    """The result of one check: what was found, and what to do about it."""

    check: str
    state: State
    finding: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: what it compares, when it warns and fails, and the fix. For help and documents."""

    name: str
    meaning: str
    warns: str
    fails: str
    fix: str


CLOCK_WARN_MS: Final = 500
CLOCK_FAIL_MS: Final = 5_000
SYNCS: Final = 50
SYNC_BYTES: Final = 64 * 1024
SYNC_WARN_MS: Final = 20.0  # median
SYNC_WORST_WARN_MS: Final = 500.0  # the slowest of all
SYNC_FAIL_MS: Final = 100.0  # median
FREE_FAIL_BYTES: Final = 256 * 1024 * 1024  # below it a bookie takes no writes
FREE_WARN_BYTES: Final = 1024 * 1024 * 1024
FREE_WARN_SHARE: Final = 0.1
FILES_FAIL: Final = 1_024
FILES_WARN: Final = 11_000  # the connections that a gateway accepts, and the files of its storage
FILES_USED_WARN: Final = 0.8
FILES_USED_FAIL: Final = 0.95
LOOKUP_WARN_S: Final = 1.0
LAG_WARN_S: Final = 60.0
LAG_FAIL_S: Final = 3_600.0

CHECKS: Final = (
    Check(
        "bootstrap",
        "The servers of `--bootstrap` answer in Kafka's protocol.",
        "some of them do not answer",
        "none of them answers",
        "start the gateway, or name its address with `--bootstrap host:port`",
    ),
    Check(
        "address",
        "Each broker answers, from here, at the address that it gives to clients.",
        "never",
        "a broker does not answer there, or a broker of another cluster does",
        "start the gateway with `--advertised-host` and `--advertised-port` that lead to it",
    ),
    Check(
        "dns",
        "The names of all servers resolve here.",
        "a lookup takes more than 1 s",
        "a name does not resolve within 5 s, or not at all",
        "correct the name in DNS or in `/etc/hosts`, or use an address that resolves",
    ),
    Check(
        "clocks",
        "The clocks of this machine, of all gateways and of all bookies agree.",
        "a clock differs by 500 ms",
        "a clock differs by 5 s",
        "synchronise the clocks by NTP (`timedatectl`, `chronyc tracking`)",
    ),
    Check(
        "sync",
        "50 writes of 64 KiB, each synced to the disk of `--data`.",
        "the median is 20 ms, or one takes 500 ms",
        "the median is 100 ms, or a write fails",
        "put the data directory on a local SSD that other programs do not fill with writes",
    ),
    Check(
        "disk",
        "Free space of `--data` and of each bookie, and that each bookie takes writes.",
        "less than 10 % or 1 GiB are free",
        "less than 256 MiB are free, or a bookie takes no writes",
        "free space, add a disk or a bookie, or shorten `retention.ms` of large topics",
    ),
    Check(
        "files",
        "Open files that this user and each gateway may have (`ulimit -n`, hard limit).",
        "less than 11,000, or 80 % of them are open",
        "less than 1,024, or 95 % of them are open",
        "raise the limit: `LimitNOFILE=` of systemd, or `/etc/security/limits.conf`",
    ),
    Check(
        "zookeeper",
        "ZooKeeper answers here, and grants the session timeout that was asked for.",
        "the granted timeout differs from the one asked for",
        "ZooKeeper does not answer, or grants less than half of the timeout",
        "start ZooKeeper, or set `minSessionTimeout` and `maxSessionTimeout` around `--session`",
    ),
    Check(
        "versions",
        "All gateways and bookies are of one release, and the features have their newest levels.",
        "releases differ, or a feature waits for `gateway feature upgrade`",
        "releases differ in the first number that is not 0",
        "upgrade the older processes, then run `gateway feature upgrade`",
    ),
    Check(
        "racks",
        "There are bookies, and racks, for the copies that topics ask for.",
        "no bookie is spare, all bookies are in one of several racks, or some have no rack",
        "fewer bookies take writes than a topic has copies",
        "start more bookies, in other racks (`bookie serve --rack`)",
    ),
    Check(
        "leaders",
        "Each partition has a leader.",
        "never",
        "a partition has none",
        "start the missing gateways; after the death of one, wait until its session ends",
    ),
    Check(
        "ledgers",
        "All ledgers have all their copies, and each entry has one that can be read.",
        "ledgers are under-replicated or name an absent bookie, or no auditor runs",
        "an entry has no readable copy, or the metadata of a ledger cannot be read",
        "bring the absent bookies back or run `bookie audit`; `gateway ledger why LEDGER` explains",
    ),
    Check(
        "lag",
        "How old the next record of each group is.",
        "60 s, or a group without members is 1 h behind",
        "1 h, for a group with members",
        "add consumers, or find out why they are slow (`gateway group describe`)",
    ),
    Check(
        "settings",
        "Settings that are stored and shown, but that do nothing here.",
        "a topic or a broker has such a setting",
        "never",
        "remove them, because operators may rely on them",
    ),
)
LOCAL: Final = frozenset({"dns", "sync", "disk", "files"})
"""Checks that can be done without a server."""
BY_NAME: Final = {each.name: each for each in CHECKS}


def ok(check: str, finding: str) -> Finding:
    return Finding(check, State.ok, finding)


def unknown(check: str, finding: str, fix: str = "") -> Finding:
    return Finding(check, State.unknown, finding, fix)


def warn(check: str, finding: str, fix: str = "") -> Finding:
    return Finding(check, State.warn, finding, fix or BY_NAME[check].fix)


def fail(check: str, finding: str, fix: str = "") -> Finding:
    return Finding(check, State.fail, finding, fix or BY_NAME[check].fix)


def worst(found: Iterable[Finding]) -> Finding:
    """Return one finding for all: the worst state, the texts in that state, the first of their
    fixes.

    A fail is worse than a warning, a warning worse than unknown, unknown worse than ok.
    """
    order = (State.fail, State.warn, State.unknown, State.ok)
    rows = sorted(found, key=lambda each: order.index(each.state))
    same = [each for each in rows if each.state is rows[0].state]
    return same[0]._replace(finding="; ".join(each.finding for each in same if each.finding))


def listed(names: Sequence[str], most: int = _NAMED_MAX) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 bookie` or `3 bookies`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def seconds(value_s: float) -> str:
    """Return a duration for people: `620 ms`, `6.2 s`, `5 min`, `3.1 h`, `2.5 d`."""
    if value_s < 1:
        return f"{round(value_s * 1000)} ms"
    for unit, scale, below in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if value_s < below:
            return f"{value_s / scale:.3g} {unit}"
    return f"{value_s / 86_400:.3g} d"


def summary(found: Sequence[Finding]) -> str:
    """Return one sentence about all checks."""
    fails = sum(each.state is State.fail for each in found)
    warns = sum(each.state is State.warn for each in found)
    unknowns = sum(each.state is State.unknown for each in found)
    whole = counted(len(found), "check")
    text = f"{fails} of {whole} failed" if fails else f"None of {whole} failed"
    more = [f"{warns} warned"] if warns else []
    more += [f"{unknowns} could not be done"] if unknowns else []
    return f"{text}{'; ' if more else ''}{', '.join(more)}."
