"""The facts that the checks of `gateway doctor` judge. Probes collect them; nothing here waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Answer(NamedTuple):
    """Whether a server answered at an address. `fault` is None if it did."""

    server: str  # host:port, for a broker with its node id
    fault: str | None = None
    cluster_id: str | None = None
    fix: str = ""  # of the fault, if it is not that of the check


class Lookup(NamedTuple):
    """The lookup of a name."""

    name: str
    took_s: float
    addresses: tuple[str, ...] = ()
    fault: str | None = None


class ClockReading(NamedTuple):
    """How far a process's clock is ahead of this machine's; None if it is unknown.

    The true value is within `within_ms`, half of the time that the answer took.
    """

    process: str
    ahead_ms: float | None
    within_ms: float = 0.0
    reason: str = ""  # why it is unknown


class SyncTimes(NamedTuple):
    """How long synced writes took. `fault` names the write that failed."""

    place: str
    took_ms: tuple[float, ...] = ()
    fault: str | None = None


class Space(NamedTuple):
    """The disk of a directory or of a bookie. `writable` is None for a directory."""

    place: str
    free_bytes: int | None
    whole_bytes: int | None = None
    writable: bool | None = None
    fault: str | None = None


class Files(NamedTuple):
    """The open files of a process; a limit of None is none, a count of None is unknown."""

    process: str
    files_max: int | None
    files_open: int | None = None


class Session(NamedTuple):
    """A session at ZooKeeper: the timeout asked for and the one granted."""

    process: str
    wanted_ms: int
    granted_ms: int


class Release(NamedTuple):
    process: str
    release: str | None  # None if the process reports none


class Level(NamedTuple):
    """The level of a feature, and the newest one that the servers support."""

    feature: str
    finalized: int
    supported: int


class Store(NamedTuple):
    """A process that keeps copies: a bookie, or a broker of Kafka."""

    name: str
    rack: str
    writable: bool


class Copies(NamedTuple):
    topic: str
    copies: int


class NoLeader(NamedTuple):
    topic: str
    partition: int  # -1: all of a topic whose metadata cannot be read
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The ledgers of a cluster, or the partitions of a Kafka cluster."""

    whole: int
    noun: str = "ledger"  # or "partition"
    lacking: tuple[str, ...] = ()  # under-replicated: marked by the auditor
    away: tuple[str, ...] = ()  # absent bookies that ledgers name
    unreachable: tuple[str, ...] = ()  # some entry has no registered bookie left
    lost: tuple[str, ...] = ()  # no bookie has some entry
    unreadable: tuple[str, ...] = ()  # damaged metadata
    auditor: bool = True
    unexamined: int = 0  # marked ledgers beyond those that were examined


class Lag(NamedTuple):
    """How far a group is behind in a partition. `behind_s` is None if the leader gave no times."""

    group: str
    topic: str
    partition: int
    records: int
    behind_s: float | None
    members: bool  # the group has members


class Idle(NamedTuple):
    """A setting that is stored and shown, and that does nothing."""

    resource: str  # "topic orders", "broker 0", "all brokers"
    setting: str
