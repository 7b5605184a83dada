"""The verbs that the suite speaks; each client's adapter says them with its own public API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Acks = Literal["0", "1", "all"]
Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """What a producer is given."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Stored(NamedTuple):
    """What a consumer was handed."""

    partition: int
    offset: int
    record: Record


class At(NamedTuple):
    """Where a time was found."""

    offset: int
    timestamp_ms: int | None  # None: the client does not tell


def session_ms(instance: str | None) -> int:
    """The session of a member: longer than a busy machine stands still, unless it is static.

    A static member is in its group until its session ends.
    """
    return 30_000 if instance is None else 6_000


class TopicExists(Exception):
    """The broker refused to create a topic that is there."""


class TooLarge(Exception):
    """The broker refused a batch over max.message.bytes."""


class Rebalancing(Exception):
    """A commit was refused because the group is being rebalanced: poll, then commit again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The settings that the suite varies."""

    acks: Acks = "all"
    codec: str | None = None
    idempotent: bool = False
    linger_ms: int = 20
    request_bytes_max: int = 1024 * 1024


class Producer(Protocol):
    """One producer instance of the client."""

    def send(self, topic: str, records: Sequence[Record], partition: int = 0) -> None:
        """Hand the records over, in order; does not wait."""
        ...

    def wait(self) -> list[int]:
        """Return the offsets of all sent since the last wait, in the order sent; -1 unknown."""
        ...

    def close(self) -> None: ...


class Member(Protocol):
    """One member of a consumer group, subscribed to one topic."""

    rebalances: int

    def poll(self) -> list[Stored]: ...

    def assignment(self) -> set[int]: ...

    def commit(self) -> None:
        """Commit, synchronously, the position of every assigned partition.

        Raises Rebalancing when the group has moved on.
        """
        ...

    def close(self) -> None: ...


class Client(Protocol):
    """A client library, connected to one broker."""

    name: str
    codecs: tuple[str, ...]
    cannot_send: frozenset[str]  # "nothing": neither key nor value; "null header"

    def create_topic(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def partitions(self, topic: str) -> int: ...

    def config(self, topic: str, key: str) -> str: ...

    def producer(self, options: ProducerOptions) -> Producer: ...

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Stored]:
        """Return `count` records from `offset` on."""
        ...

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Return the beginning and the end offset."""
        ...

    def first_at(self, topic: str, timestamp_ms: int) -> At | None:
        """Return the first place at or after the time in partition 0, None when none is."""
        ...

    def committed(self, group: str, topic: str, partitions: int) -> list[int | None]: ...

    def member(
        self, group: str, topic: str, *, instance: str | None = None, reset: str = "earliest"
    ) -> Member: ...

    def close(self) -> None: ...
