"""Reads topics as a member of a consumer group, with aiokafka, and commits what was printed."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from traceback import walk_tb
from typing import Any, Final

from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.client_settings import raise_token_fault
from gateway.admin.consume import Printer, Turns, Wanted, find_topics
from gateway.admin.consume_fetch import name_of

_WAIT_MS: Final = 500
_COMMIT_S: Final = 1.0
_END_S: Final = 5.0
_JOIN_S_MAX: Final = 60.0  # a rebalance waits for other members
_RECORDS_AT_ONCE: Final = 500
_FETCH_BYTES: Final = 4 * 1024 * 1024


async def consume_as_member(
    client: AdminClient, group: str, wanted: Wanted, printer: Printer
) -> None:
    """Print the records of the partitions that the group assigns, and commit their offsets.

    Ends at what was the end of each partition when it was assigned. Raises Unreachable and
    AdminError.
    """
    from aiokafka import AIOKafkaConsumer
    from aiokafka.abc import ConsumerRebalanceListener
    from aiokafka.errors import KafkaConnectionError, KafkaError

    topics = list(await find_topics(client, wanted.topics))
    printer.begin()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)  # it logs what it also raises
    arguments = client.settings.for_aiokafka()
    consumer: Any = AIOKafkaConsumer(
        **arguments,
        group_id=group,
        client_id="gateway-consume",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed" if wanted.committed else "read_uncommitted",
        fetch_max_bytes=_FETCH_BYTES,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    member = Member(consumer, wanted, printer)

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: object) -> Any:
            return member.commit_if_possible()

        def on_partitions_assigned(self, assigned: Any) -> None:
            member.on_assigned(assigned)

    try:
        await consumer.start()
        consumer.subscribe(topics, listener=Listener())
        await member.read()
    except KafkaConnectionError as error:
        raise_token_fault(arguments)
        raise Unreachable(f"no server at {client.settings.bootstrap}: {error}") from None
    except KafkaError as error:
        raise_token_fault(arguments)
        raise _refused(group, error) from None
    finally:
        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_END_S):
                await consumer.stop()


def _refused(group: str, error: Any) -> AdminError:
    name = type(error).__name__.removesuffix("Error")
    code = "".join(f"_{each}" if each.isupper() else each for each in name).lstrip("_").upper()
    return AdminError(f"group {group}: {error}", code)


def _rebalancing() -> tuple[type[Exception], ...]:
    """Return the errors of a member whose group is being rebalanced."""
    from aiokafka import errors

    return (
        errors.CommitFailedError,
        errors.IllegalStateError,
        errors.IllegalGenerationError,
        errors.RebalanceInProgressError,
        errors.UnknownMemberIdError,
    )


def _undecodable() -> tuple[type[Exception], ...]:
    """Return the errors that aiokafka passes on from its decoders."""
    from cramjam import DecompressionError

    return (DecompressionError, zlib.error, ValueError, EOFError, OSError)


def _not_decoded(error: Exception) -> AdminError:
    """Return the error of a record that aiokafka cannot decode, with its place."""
    where = ""
    for frame, _ in walk_tb(error.__traceback__):  # aiokafka's error does not have the place
        partition, reader = map(frame.f_locals.get, ("tp", "self"))
        offset = getattr(reader, "next_fetch_offset", None)
        if partition is not None and offset is not None:
            where = f"{name_of((partition.topic, partition.partition))}@{offset}: "
    message = f"{where}the record cannot be decoded: {error}; try without --group"
    return AdminError(message, "CORRUPT_MESSAGE")


class Member:
    """A consumer of aiokafka whose records are printed."""

    def __init__(
        self, consumer: Any, wanted: Wanted, printer: Printer, commit_s: float = _COMMIT_S
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._printer = printer
        self._commit_s = commit_s
        # By partition: the offset behind its last record that was printed, until it is committed.
        self._taken: dict[Any, int] = {}
        self._committed_s = asyncio.get_running_loop().time()
        # When the last record arrived, or the start.
        self._progress_s = self._committed_s
        # True from the first assignment on, even if it is empty.
        self._assigned = False
        # By assigned partition: its end when it was assigned. Partitions leave with a rebalance.
        self._ends: dict[Any, int] = {}

    def on_assigned(self, assigned: Iterable[Any]) -> None:
        """Drop the offsets of partitions that are assigned to other members now."""
        self._assigned = True
        kept = set(assigned)
        self._taken = {each: at for each, at in self._taken.items() if each in kept}

    async def read(self) -> None:
        """Read up to the end. What was printed is committed, also if this is cancelled."""
        turns = Turns()
        try:
            while not self._printer.full and not await self._at_end():
                found = await self._received()
                taken = await self._take(found)
                await self._printer.out.flush()
                self._taken |= taken
                await turns.give()
                if found:
                    self._progress_s = asyncio.get_running_loop().time()
                await self._commit_if_due()
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self.commit_if_possible()
            raise
        await self._commit()

    async def _commit_if_due(self) -> None:
        """Commit once a second. A rebalance only delays it: the offsets are kept."""
        if asyncio.get_running_loop().time() - self._committed_s >= self._commit_s:
            with suppress(*_rebalancing()):
                await self._commit()

    async def _received(self) -> Mapping[Any, Any]:
        try:
            return await self._consumer.getmany(timeout_ms=_WAIT_MS, max_records=_RECORDS_AT_ONCE)
        except _undecodable() as error:
            await self.commit_if_possible()
            raise _not_decoded(error) from None

    async def commit_if_possible(self) -> None:
        """Commit before other members get the partitions. A failure repeats what was printed."""
        from aiokafka.errors import KafkaError

        with suppress(KafkaError):
            await self._commit()

    async def _take(self, found: Mapping[Any, Any]) -> dict[Any, int]:
        """Hand records to the printer. Returns the offset behind the last of each partition."""
        taken: dict[Any, int] = {}
        for partition, records in found.items():
            if self._printer.full:
                break
            seen = await self._printer.take(partition.topic, partition.partition, records)
            if seen:
                taken[partition] = records[seen - 1].offset + 1
        return taken

    async def _commit(self) -> None:
        """Commit what was printed in the partitions that this member still has."""
        assigned = self._consumer.assignment()
        offsets = {each: offset for each, offset in self._taken.items() if each in assigned}
        self._committed_s = asyncio.get_running_loop().time()
        if offsets:
            await self._consumer.commit(offsets)
        for partition, offset in offsets.items():
            if self._taken.get(partition) == offset:
                del self._taken[partition]

    async def _at_end(self) -> bool:
        """Return True if every assigned partition is read up to what its end was."""
        if self._wanted.follow:
            return False
        waited_s = asyncio.get_running_loop().time() - self._progress_s
        if waited_s > _JOIN_S_MAX + self._wanted.retry_s:
            what = "the server returns no more records" if self._assigned else "no member joins"
            raise AdminError(f"{what} since {waited_s:.0f} s, before the end", "TIMED_OUT")
        if not self._assigned:
            return False
        try:
            return await self._all_read()
        except _rebalancing():
            return False

    async def _all_read(self) -> bool:
        assigned = self._consumer.assignment()
        new = [each for each in assigned if each not in self._ends]
        if new:
            self._ends |= await self._consumer.end_offsets(new)
        for partition in [each for each in self._ends if each not in assigned]:
            del self._ends[partition]
        for partition in assigned:
            if await self._consumer.position(partition) < self._ends[partition]:
                return False
        return True
