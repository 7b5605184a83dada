"""Known mistakes planted into the product, and how many seeds it takes to find each.

Every one is what a published implementation or text once did wrong (T1 to T22 of the traps that
this project knows), or breaks one rule of its own. The switch is here, never in the product.

    python -m tests.sim.mutations [--seeds-max N] [name ...]
"""

import argparse
import asyncio
import contextlib
import time
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from ledger.bookie import directory
from ledger.bookie.bookie import Bookie
from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.gc import collector
from ledger.bookie.gc.compactor import LogCompactor
from ledger.bookie.journal import Journal
from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor
from ledger.bookie.storage import BookieStorage
from ledger.client import client, recover
from ledger.client.metadata_format import ledger_of_path
from ledger.client.reader import LedgerReader
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.client.writer import LedgerWriter
from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import EnsembleChange, EnsembleSlot
from ledger.core.entry_format import EntryFormat
from ledger.core.journal_format import RecordType
from ledger.core.ledger_metadata import Versioned
from ledger.core.ledger_writing import Closing
from ledger.core.quorum import Coverage
from ledger.errors import BadVersion, Fenced, MetadataUnavailable, NoNode
from ledger.ids import EntryId
from ledger.ports.bookies import ReadReply, Status
from ledger.registry.layout import LEDGERS
from ledger.repair.repair_task import RepairRound
from tests.sim import (
    accident_mistakes,
    bookie_families,
    families,
    planted,
    reading_mistakes,
    refusal_mistakes,
    slow_mistakes,
    swarm_hosts,
)
from tests.sim.disk import SimLogFile
from tests.sim.exhaustive.mistakes import MISTAKES
from tests.sim.exhaustive.search import search
from tests.sim.loop import simulate
from tests.sim.planting import Mutation, patched
from tests.sim.swarm import order_of


class Result(NamedTuple):
    mutation: Mutation
    seeds: int  # needed
    how: str  # the first thing that was found wrong; empty: nothing was


def recovery_as(mistake):
    def plant(world):
        target = "RecoveryRun" if issubclass(mistake, recover.RecoveryRun) else "Recovery"
        return mock.patch.object(recover, target, mistake)

    return plant


@contextlib.contextmanager
def publishing_early(world):
    build = world.build

    def build_and_tell():
        build()
        planted.CommittedChange.tree = world.cluster.tree

    world.build = build_and_tell
    with mock.patch.object(recover, "RecoveryRun", planted.CommittedChange):
        yield


# -- bookies -------------------------------------------------------------------------------------


async def fence_answered_at_once(self, ledger, master_key):
    """The record is still queued: a power cut forgets it."""
    state = self._authorize(ledger, master_key)
    if isinstance(state, Status):
        return state
    state.fenced = True
    self.storage.append(RecordType.FENCE, state, -1)
    return Status.OK


async def fences_answered_at_once(self, ledgers, bytes_max=0):
    """The same of many fences."""
    states = [self._fences.begin(ledger, key) for ledger, key in ledgers]
    return [
        ReadReply(state) if isinstance(state, Status) else await self.read(ledger, -1)
        for (ledger, _), state in zip(ledgers, states, strict=True)
    ]


_append = Journal.append


def fence_overtakes_adds(self, record):
    """What was accepted before the fence may still become durable after the answer."""
    _append(self, record)
    if record.kind is RecordType.FENCE:
        self._queue.insert(0, self._queue.pop())


async def reads_what_is_durable_now(self, ledger, entry, room=None):
    """Not what was accepted before the question: the other half of the same mistake."""
    state = self._index.state(ledger)
    if state is not None and entry < 0:
        entry = state.last_entry
        while entry > 0 and not isinstance(self._index.find(state, entry), EntryLocation):
            entry -= 1
    return await _read_one(self, ledger, entry, room)


def overtaking_fences(world):
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(Journal, "append", fence_overtakes_adds))
    stack.enter_context(mock.patch.object(EntryReader, "read", reads_what_is_durable_now))
    return stack


_write_group = Journal._write_group


def acknowledged_before_the_sync(self):
    config = self._config
    self._config = replace(config, journal_sync="never")
    try:
        _write_group(self)
    finally:
        self._config = config


_read_one = EntryReader.read


async def denies_what_is_damaged(self, ledger, entry, room=None):
    reply = await _read_one(self, ledger, entry, room)
    return ReadReply(Status.NO_ENTRY) if reply.status is Status.IO_ERROR else reply


async def sees_no_loss(disk, boot_id):
    return False


async def logs_nothing(self, kind):
    pass


def any_fence_is_logged(cls, ledger, value):
    """The flag in the index, whose batch may be written before the record is."""
    state = _decode(cls, ledger, value)
    state.fence_logged = state.fenced
    return state


_decode = LedgerDescriptor.decode.__func__


class NoRepairs(dict):
    """Repairs that are queued are not known to a compaction."""

    def __contains__(self, key):
        return False


def appends_whatever_it_read(self, ledger, entry, location, body):
    index = self._index
    with (
        mock.patch.object(self._storage, "repairs", NoRepairs()),
        mock.patch.object(index, "find", lambda state, entry: location),
    ):
        _append_entry(self, ledger, entry, location, body)


_append_entry = LogCompactor._append_entry


def lying_sync(self, on_synced, covered):
    """The disk says "synced" and keeps the bytes volatile."""
    if self._disk.alive:
        on_synced(None)


# -- clients -------------------------------------------------------------------------------------


def all_must_answer(self):
    return all(len(self._known.intersection(one)) == len(one) for one in self._sets)


async def adopts_the_version(self, known, change):
    """After a refused set: the version as it is now, the content as it was."""
    current = known
    path = client.metadata_format.ledger_path(known.metadata.ledger)
    for _ in range(20):
        wanted = change(current.metadata)
        if wanted is None:
            return current
        try:
            data = client.metadata_format.encode(wanted)
            return Versioned(wanted, await self.store.set(path, data, current.version))
        except BadVersion:
            current = Versioned(current.metadata, (await self.store.get(path)).version)
        except MetadataUnavailable:
            await asyncio.sleep(0.02)
        except NoNode as error:
            raise client.NoSuchLedger(path) from error
    raise MetadataUnavailable("too many attempts")


async def own_success_is_defeat(self, known, change):
    """A set is refused after a lost reply: that must have been somebody else."""
    current, unanswered = known, False
    path = client.metadata_format.ledger_path(known.metadata.ledger)
    for _ in range(20):
        wanted = change(current.metadata)
        if wanted is None:
            return current
        try:
            data = client.metadata_format.encode(wanted)
            return Versioned(wanted, await self.store.set(path, data, current.version))
        except BadVersion:
            if unanswered:
                raise Fenced("somebody else has changed it") from None
            current = await self.read(known.metadata.ledger)
        except MetadataUnavailable:
            unanswered = True
            await asyncio.sleep(0.02)
        except NoNode as error:
            raise client.NoSuchLedger(path) from error
    raise MetadataUnavailable("too many attempts")


async def closes_over_what_is_pending(self):
    self._closing = True
    writing, adds = self._writing, self._adds
    writing.on_close()
    known = Versioned(writing.change.metadata, writing.version)
    await self._metadata_store.update(known, Closing(adds.lac, adds.lac_length).apply)
    return self.lac


async def deletes_what_is_open(self, ledger):
    path = client.metadata_format.ledger_path(ledger)
    try:
        await self._store.delete(path)
    except NoNode as error:
        raise client.NoSuchLedger(path) from error


async def opens_instead(self, ledger):
    """An unclosed ledger is read up to the LAC that is known, as if it ended there."""
    return await self.open(ledger)


async def swaps_before_copying(self, bookies, share, fragment):
    return True


_init_adds = AddPipeline.__init__


def one_less_is_enough(self, *, ack_quorum, **others):
    _init_adds(self, ack_quorum=max(1, ack_quorum - 1), **others)


_propose = EnsembleChange.propose


def leaves_pending_behind(self, spares):
    """The new fragment begins after what was sent, not after what is confirmed."""
    proposal = _propose(self, spares)
    self.proposal = replace(proposal, first=EntryId(self._adds.lap + 1))
    return self.proposal


_examine = RepairRound.examine


async def ends_limbo_first(self):
    plan, found = await _examine(self)
    for bookie, replica in self._replicas.items():
        if replica.limbo:
            await self._copier.end_limbo(bookie)
    return plan, found


def learns_one_more(self, lac):
    self.last_add_confirmed = max(self.last_add_confirmed, lac + (lac >= 0))


def collecting_by_one_listing(world):
    """In the product's collector, and in that of the model's bookies."""
    stack = contextlib.ExitStack()
    for module in (swarm_hosts, collector):
        stack.enter_context(
            mock.patch.object(module, "find_deleted_ledgers", collects_by_one_listing)
        )
    return stack


async def collects_by_one_listing(held, list_ledgers, ledger_exists):
    """One look, at a follower that may be behind."""
    (store,) = list_ledgers.args
    living = {ledger_of_path(path) for path in await store.paths(LEDGERS)}
    return [ledger for ledger in held.ledgers() if ledger not in living]


def without_digest(self, body, ledger, entry):
    return memoryview(body)[self._payload_at :]


class NeverReplaced(EnsembleSlot):
    """What comes from a slot that was replaced still counts."""

    __slots__ = ()
    replaced = property(lambda self: False, lambda self, value: None)


MUTATIONS = (
    Mutation(
        "T1",
        "recovery reads do not fence",
        recovery_as(planted.UnfencedReads),
        families.Overtaken,
    ),
    Mutation(
        "T2",
        "a fence is answered before it is durable",
        patched(Bookie, fence=fence_answered_at_once),
        families.RealTaken,
    ),
    Mutation(
        "own",
        "many fences are answered before they are durable",
        patched(Bookie, fence_many=fences_answered_at_once),
        families.RealTaken,
    ),
    Mutation("T3", "one no ends recovery", recovery_as(planted.OneNoIsEnough)),
    Mutation("T4", "an error counts as no", recovery_as(planted.ErrorIsNo)),
    Mutation(
        "T5",
        "a damaged entry is denied",
        patched(EntryReader, read=denies_what_is_damaged),
        families.RealRotten,
    ),
    Mutation(
        "T5",
        "a bookie in limbo denies what it may have lost",
        patched(EntryReader, _in_limbo=lambda self, ledger, state: False),
        families.RealWiped,
    ),
    Mutation(
        "T6",
        "a wiped bookie serves at once",
        patched(directory, lost_unsynced=sees_no_loss),
        families.RealWiped,
    ),
    Mutation(
        "T7",
        "an add is acknowledged before it is durable",
        patched(Journal, _write_group=acknowledged_before_the_sync),
        families.RealCrashing,
    ),
    Mutation(
        "T7",
        "the disk lies about syncs (in the simulated disk)",
        patched(SimLogFile, _finish=lying_sync),
        families.RealCrashing,
    ),
    Mutation(
        "T8",
        "bookies changed during recovery are published early",
        publishing_early,
        families.Replaced,
    ),
    Mutation(
        "T9",
        "recovery reads from the changed bookies",
        recovery_as(planted.ReadsFromTheNew),
        families.Replaced,
    ),
    Mutation(
        "T10",
        "what a replaced bookie said of pending entries still counts",
        patched(AddPipeline, forget=lambda self, index: None),
        families.Changing,
    ),
    Mutation(
        "T10",
        "what a replaced bookie says later still counts",
        patched(EnsembleSlot, replaced=NeverReplaced.replaced),
        families.Changing,
    ),
    Mutation(
        "T11",
        "the version of metadata that were not read is adopted",
        patched(LedgerMetadataStore, update=adopts_the_version),
        families.Replaced,
    ),
    Mutation(
        "T12",
        "entries are acknowledged while bookies are being changed",
        patched(AddPipeline, hold=lambda self: None),
        families.Changing,
    ),
    Mutation(
        "T13",
        "recovery starts below the last fragment",
        recovery_as(planted.NoFloor),
        families.Changing,
    ),
    Mutation(
        "T14",
        "recovery wants an answer of every bookie",
        patched(Coverage, reached=property(all_must_answer)),
        families.Gone,
    ),
    Mutation(
        "T15",
        "close does not wait for what is pending",
        patched(LedgerWriter, close=closes_over_what_is_pending),
    ),
    Mutation(
        "T15",
        "an open ledger is deleted",
        patched(client.LedgerClient, delete=deletes_what_is_open),
        families.Deleted,
    ),
    Mutation(
        "T16",
        "an open ledger is read instead of recovered",
        patched(client.LedgerClient, recover=opens_instead),
    ),
    Mutation(
        "T17",
        "one's own lost reply is taken for a rival's change",
        patched(LedgerMetadataStore, update=own_success_is_defeat),
        families.Unanswered,
    ),
    Mutation(
        "T22",
        "no answer is read as no ledger",
        recovery_as(planted.NoAnswerIsNoLedger),
    ),
    Mutation(
        "T22",
        "PERMISSION_DENIED is read as no ledger",
        recovery_as(planted.RefusalIsNoLedger),
        families.Refused,
    ),
    Mutation(
        "L2",
        "one bookie less than Qa is enough",
        patched(AddPipeline, __init__=one_less_is_enough),
    ),
    Mutation(
        "L3",
        "a reader knows one more than is confirmed",
        patched(LedgerReader, _raise_lac=learns_one_more),
        families.Watched,
    ),
    Mutation(
        "L6",
        "digests are not looked at",
        patched(EntryFormat, unpack=without_digest),
        families.Rotten,
    ),
    Mutation(
        "L7",
        "recovery believes the LAC of an entry that does not verify",
        recovery_as(planted.AnyLac),
        families.RealRotten,
    ),
    Mutation(
        "L7",
        "a compaction appends what was repaired since it was read",
        patched(LogCompactor, _append_entry=appends_whatever_it_read),
        bookie_families.RepairBesideRewrite,
    ),
    Mutation(
        "L9",
        "a new fragment begins after what was sent",
        patched(EnsembleChange, propose=leaves_pending_behind),
        families.Changing,
    ),
    Mutation(
        "L10",
        "a fence that the log refused counts as logged",
        patched(LedgerDescriptor, decode=classmethod(any_fence_is_logged)),
        bookie_families.FullDisks,
    ),
    Mutation("L11", "one fenced bookie is enough", recovery_as(planted.FencesOne)),
    Mutation("L13", "recovery writes nothing back", recovery_as(planted.NoWriteBack)),
    Mutation(
        "L13",
        "a copy tells of unpublished progress",
        recovery_as(planted.OwnProgress),
        families.Replaced,
    ),
    Mutation(
        "L15",
        "limbo ends before the share is whole",
        patched(RepairRound, examine=ends_limbo_first),
        families.Mended,
    ),
    Mutation(
        "L15",
        "limbo is not logged at boot",
        patched(BookieStorage, log_limbo_bounds=logs_nothing),
        bookie_families.LimboAtBoot,
    ),
    Mutation(
        "L16",
        "a fence overtakes adds that were accepted before it",
        overtaking_fences,
        families.RealTaken,
    ),
    Mutation(
        "L18",
        "a bookie collects what one old listing lacks",
        collecting_by_one_listing,
        families.Lagging,
    ),
    Mutation(
        "L19",
        "repair names a bookie before it has its share",
        patched(RepairRound, _copy_all=swaps_before_copying),
        families.Mended,
    ),
    *accident_mistakes.MUTATIONS,
    *reading_mistakes.OF_THE_SWARM,
    *slow_mistakes.MUTATIONS,
    *refusal_mistakes.OF_THE_SWARM,
)


def finds(mutation, seed):
    """What the mistake made wrong in this seed, or an assertion of the product saw; else ''."""
    world = mutation.world(seed)
    with mutation.plant(world):
        try:
            found = simulate(world.run(), order_of(seed))
        except (AssertionError, asyncio.InvalidStateError) as error:
            return f"an assertion: {error}"
    return found[0] if found else ""


def hunt(mutation, seeds_max, on_seed=None):
    """Seed after seed until one finds it."""
    for seed in range(seeds_max):
        how = finds(mutation, seed)
        if on_seed is not None:
            on_seed()
        if how:
            return Result(mutation, seed + 1, how)
    return Result(mutation, seeds_max, "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="traps as in T1, or parts of names; all without")
    parser.add_argument("--seeds-max", type=int, default=10_000)
    arguments = parser.parse_args()
    for name, mistake in MISTAKES.items():
        if not arguments.names:
            found = search(mistake.world())
            print(f"{name}: {found.states} states: {found.violation}", flush=True)
    missed = 0
    for mutation in MUTATIONS:
        words = [mutation.trap, mutation.name]
        if arguments.names and not any(n == words[0] or n in words[1] for n in arguments.names):
            continue
        began_s = time.monotonic()
        result = hunt(mutation, arguments.seeds_max)
        seconds = time.monotonic() - began_s
        missed += not result.how
        print(*words, mutation.world.__name__, f"{result.seeds} seeds, {seconds:.0f} s", sep=" | ")
        print("    ", result.how or "NOT FOUND", flush=True)
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
