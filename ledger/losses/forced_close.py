"""Close a ledger that too few bookies hold for a recovery, at the last entry that can be read.

Bookies that are gone may have acknowledged more, and those that are left need not know how much.
So all offsets that the rest of its segment may have are reserved, in the step that closes the
ledger: no process sees it closed and its offsets free. The owner of the stream loses it in the same
step, because it may have read the list before.

Only bookies that are not registered are given up. A registered one that does not answer may have
the rest, so the ledger stays open until it answers, or was stopped.

The ledger is fenced on too few bookies to exclude its writer. A running writer that reaches Qa
bookies that did not answer here may acknowledge entries above the end. So the writer must have
stopped, or have seen the closed ledger, before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore, RetryBudget, Versioned
from ledger.core.accepted_losses import RESERVED_OFFSETS, LostRange
from ledger.core.entry_format import EntryFormat, master_key, read_header
from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.core.loss import (
    AuthoritativeStatus,
    CopyAnswer,
    CopyState,
    judge,
    state_of,
)
from ledger.core.records import parse_entry
from ledger.core.text import names_of
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    EntryUnknown,
    InvalidArgument,
    MetadataUnavailable,
    NodeExists,
    NoNode,
)
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.losses.place import LedgerPlace, find_place, stream_of
from ledger.ports.bookies import Bookies, ReadReply, Status
from ledger.ports.metadata import Check, Op, Set
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.streams.accepted_losses import reserve_ops
from ledger.streams.segment_store import log_root

_FENCED: Final = {
    Status.OK: CopyAnswer.DENIED,
    Status.NO_ENTRY: CopyAnswer.DENIED,
    Status.NO_LEDGER: CopyAnswer.DENIED,
    Status.UNKNOWN_LEDGER_STATE: CopyAnswer.LOST,
}
"""The answers of a bookie that fenced the ledger, and what each says of entries it lacks."""

_LAST = EntryId(2**62)


class _End(NamedTuple):
    """The end up to which the entries can be read."""

    last: EntryId
    payload: memoryview | None  # of the last entry; None if there is none
    states: tuple[CopyState, ...]  # of the entry behind it


class ForcedClose:
    """Closes ledgers by force, on behalf of one operator."""

    def __init__(
        self,
        metadata: LedgerMetadataStore,
        bookies: Bookies,
        client_config: LedgerClientConfig,
        acceptance: Acceptance,
    ) -> None:
        self._metadata = metadata
        self._bookies = bookies
        self._client_config = client_config
        self._acceptance = acceptance

    async def run(self, ledger: LedgerId) -> None:
        """Close the ledger, unless another process does.

        Raises EntryUnknown if none of its bookies is registered, or one that is does not answer.
        Raises WrongState, InvalidArgument, CorruptFormat and MetadataUnavailable.
        """
        budget = RetryBudget(self._client_config)
        while True:
            stored = await self._metadata.read_latest(ledger)
            stored = await self._metadata.update(stored, _begin)
            if stored.metadata.closed:
                return
            try:
                await self._metadata.store.multi(await self._plan(stored))
            except (BadVersion, NodeExists, NoNode):
                continue  # another process changed one of the nodes: look again
            except InvalidArgument:  # a takeover that closed the ledger may have begun the next one
                if not (await self._metadata.read_latest(ledger)).metadata.closed:
                    raise
            except MetadataUnavailable as error:
                await budget.wait_or_raise(error)  # the next look shows the outcome

    async def _plan(self, stored: Versioned) -> list[Op]:
        """Return the one step that closes the ledger and reserves the offsets behind it."""
        metadata = stored.metadata
        unlisted = await self._still_unlisted(metadata)
        place = await find_place(self._metadata.store, metadata)
        fenced = await self._fence(metadata)
        end = await self._find_end(metadata, fenced)
        self._check_all_fenced(metadata, fenced)  # one that registered meanwhile may have the rest
        closed = metadata.close(end.last, await self._length_up_to(metadata, end.last))
        path = metadata_format.ledger_path(metadata.ledger)
        ops: list[Op] = [Set(path, metadata_format.encode(closed), stored.version)]
        if place.stream is not None:
            reserved = await self._reserved(metadata, place, end)
            ops += await reserve_ops(self._metadata.store, place.stream, reserved)
        else:
            ops += unlisted
        return ops

    async def _still_unlisted(self, metadata: LedgerMetadata) -> list[Op]:
        """Return a check that the ledger's stream lists the same ledgers as now.

        An owner may list the ledger meanwhile, and its offsets would not be reserved.
        """
        name = stream_of(metadata)
        if name is None:
            return []
        path = f"{log_root(name)}/ledgers"
        try:
            return [Check(path, (await self._metadata.store.get(path)).version)]
        except NoNode:
            return []  # the stream was deleted

    async def _reserved(self, metadata: LedgerMetadata, place: LedgerPlace, end: _End) -> LostRange:
        copier = self._copier(metadata)
        entry, payload = end.last, end.payload
        while payload is None and entry >= 0:  # the last fragment has no readable entry
            payload = await copier.read_payload(entry)
            if payload is None:
                await self._check_answered(metadata, entry)
            entry = EntryId(entry - (payload is None))
        first = place.start
        if payload is not None:
            *_, final = parse_entry(payload)
            first += final.position + max(final.records - 1, 0)
        verdict = judge(end.states, metadata.ack_quorum)
        evidence = Evidence(metadata.ledger, verdict, end.states, acceptance=self._acceptance)
        offsets = OffsetRange(first, first + RESERVED_OFFSETS - 1, exact=False)
        return LostRange(place.number, EntryId(entry + 1), ENTRY_MAX, offsets, evidence)

    async def _check_answered(self, metadata: LedgerMetadata, entry: EntryId) -> None:
        """Raise EntryUnknown if a registered bookie may have this entry and does not answer.

        The entry lies before the fragment whose end is given up, so it waits for that bookie.
        """
        denied = (Status.NO_ENTRY, Status.NO_LEDGER, Status.UNKNOWN_LEDGER_STATE, Status.IO_ERROR)
        entry_format = EntryFormat(metadata.digest_type, metadata.password)
        for bookie in metadata.bookies_of(entry):
            if bookie in self._bookies.registered():
                reply = await self._read(bookie, metadata, entry)
                damaged = reply.status is Status.OK and not _is_sound(
                    entry_format, reply, metadata.ledger, entry
                )
                if reply.status not in denied and not damaged:
                    raise EntryUnknown(
                        f"ledger {metadata.ledger}: {bookie} may have entry {entry} and does not "
                        "answer; try again, or stop it"
                    )

    def _copier(self, metadata: LedgerMetadata) -> EntryCopier:
        config = RepairConfig()
        budget = CopyBudget(config.in_flight_bytes_max, 0)
        return EntryCopier(
            metadata, self._bookies, budget, RepairProgress(), config, self._client_config
        )

    # -- the end ------------------------------------------------------------------------------

    async def _fence(self, metadata: LedgerMetadata) -> dict[BookieId, CopyAnswer]:
        """Fence the ledger. Returns what each bookie that did it says of entries that it lacks.

        Raises EntryUnknown if no bookie is registered, or one that is does not answer.
        """
        ensemble = metadata.last_fragment.ensemble
        here = [bookie for bookie in ensemble if bookie in self._bookies.registered()]
        # No bookie has this entry. Its last one may be damaged, which would look like a failure.
        asked = [self._read(bookie, metadata, _LAST, fence=True) for bookie in here]
        replies = zip(here, await asyncio.gather(*asked), strict=True)
        fenced = {
            bookie: _FENCED[reply.status] for bookie, reply in replies if reply.status in _FENCED
        }
        if not here:
            raise EntryUnknown(
                f"ledger {metadata.ledger}: none of its bookies is registered: start one of "
                f"{names_of(ensemble)}"
            )
        self._check_all_fenced(metadata, fenced)
        return fenced

    def _check_all_fenced(
        self, metadata: LedgerMetadata, fenced: Mapping[BookieId, CopyAnswer]
    ) -> None:
        """Raise EntryUnknown if a registered bookie of the last fragment was not fenced."""
        here = self._bookies.registered().keys() & set(metadata.last_fragment.ensemble)
        silent = here - fenced.keys()
        if silent:
            raise EntryUnknown(
                f"ledger {metadata.ledger}: not fenced at {names_of(silent)}: registered, and "
                "perhaps with its last entries. Wait for the answer, or stop a bookie that will "
                "never give one, and try again"
            )

    async def _find_end(
        self, metadata: LedgerMetadata, fenced: Mapping[BookieId, CopyAnswer]
    ) -> _End:
        """Find the last entry up to which the last fragment can be read, with valid digests.

        Raises EntryUnknown if a bookie of `fenced` stops answering before all entries it has are
        read. Otherwise a short outage would cut off its entries.
        """
        copier = self._copier(metadata)
        payload: memoryview | None = None
        entry = metadata.last_fragment.first
        entry_format = EntryFormat(metadata.digest_type, metadata.password)
        while True:
            answers = dict(fenced)
            bodies = None
            for bookie in metadata.bookies_of(entry):
                if bookie not in fenced:
                    continue
                reply = await copier.read_prefix(bookie, entry, _LAST)
                if reply.status is Status.IO_ERROR:
                    answers[bookie] = CopyAnswer.DAMAGED
                elif reply.status not in _FENCED:
                    raise EntryUnknown(
                        f"ledger {metadata.ledger}: {bookie} stopped answering while it was read; "
                        "try again, or stop it"
                    )
                if reply.bodies:
                    bodies = reply.bodies
                    break
            if bodies is None:
                states = tuple(
                    _given_up(bookie, answers.get(bookie)) for bookie in metadata.bookies_of(entry)
                )
                return _End(EntryId(entry - 1), payload, states)
            entry = EntryId(entry + len(bodies))
            payload = entry_format.unpack(bodies[-1], metadata.ledger, EntryId(entry - 1))

    async def _read(
        self, bookie: BookieId, metadata: LedgerMetadata, entry: EntryId, *, fence: bool = False
    ) -> ReadReply:
        """Read one entry. Returns UNREACHABLE after a timeout, so that a hanging bookie delays no
        other.
        """
        key = master_key(metadata.password) if fence else None
        try:
            async with asyncio.timeout(self._client_config.read_timeout_s):
                return await self._bookies.read(bookie, metadata.ledger, entry, fence_key=key)
        except TimeoutError:
            return ReadReply(Status.UNREACHABLE)

    async def _length_up_to(self, metadata: LedgerMetadata, last: EntryId) -> int:
        """Return the payload bytes up to `last`, from the highest readable entry."""
        for entry in range(last, -1, -1):
            length = await self._length_at(metadata, EntryId(entry))
            if length is not None:
                return length
        return 0

    async def _length_at(self, metadata: LedgerMetadata, entry: EntryId) -> int | None:
        entry_format = EntryFormat(metadata.digest_type, metadata.password)
        for bookie in metadata.bookies_of(entry):
            reply = await self._read(bookie, metadata, entry)
            try:
                entry_format.unpack(reply.body, metadata.ledger, entry)
            except CorruptFormat:
                continue
            return read_header(reply.body).length
        return None


def _is_sound(
    entry_format: EntryFormat, reply: ReadReply, ledger: LedgerId, entry: EntryId
) -> bool:
    try:
        entry_format.unpack(reply.body, ledger, entry)
    except CorruptFormat:
        return False
    return True


def _given_up(bookie: BookieId, answer: CopyAnswer | None) -> CopyState:
    """Return the state of a copy behind the end. The operator gives up those that may exist."""
    if answer in (CopyAnswer.DENIED, CopyAnswer.LOST):
        return state_of(bookie, answer)
    lost = AuthoritativeStatus.UNDERREPLICATION
    return CopyState(bookie, answer or CopyAnswer.UNKNOWN, lost)


def _begin(current: LedgerMetadata) -> LedgerMetadata | None:
    return current.in_recovery() if current.state is LedgerState.OPEN else None
