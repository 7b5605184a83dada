"""Goal: a reader reports an entry lost on evidence only, and delivers only what is confirmed.

Method: the real reader over simulated bookies, behind a port whose answers the test writes. Time
is virtual. "seed 002 L17" is a row of the acceptance list, not an invariant of docs/proof.md.
"""

import asyncio
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.loss import AuthoritativeStatus, CopyAnswer, EntryLost, Verdict, judge
from ledger.errors import EntryUnknown, LedgerError, Unauthorized
from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from tests.ledger.calm_cluster import Told, cluster, create, expected, payloads, written
from tests.ledger.reader_rig import add_one, change_metadata, grown, reader_of, settled
from tests.sim.bookie_world import entry_bytes
from tests.sim.loop import simulate

COUNT = 5
WANTED = 2
DAY_S = 86_400
SILENT = Status.UNREACHABLE
DENIES = ReadManyReply(Status.NO_ENTRY)
ENDED_BEFORE = ReadManyReply(Status.OK)  # a batch that ended before the wanted entry


class Scripted:
    """The bookies of a rig, where `replies[bookie]` replaces the answer to a method."""

    def __init__(self, port):
        self.port = port
        self.replies = {}

    def __getattr__(self, name):
        return getattr(self.port, name)

    async def read_many(self, bookie, ledger, first, last, max_bytes, **how):
        reply = self.replies.get(bookie)
        if reply is None or isinstance(reply, ReadReply):
            return await self.port.read_many(bookie, ledger, first, last, max_bytes, **how)
        return reply(first, last) if callable(reply) else reply

    async def wait_lac(self, bookie, ledger, previous, timeout_s):
        reply = self.replies.get(bookie)
        if not isinstance(reply, ReadReply):
            return await self.port.wait_lac(bookie, ledger, previous, timeout_s)
        return reply


async def scripted(world, ledger):
    """A rig whose reader and tail ask scripted bookies."""
    rig = await reader_of(world, ledger)
    rig.port = rig.reader._bookies = rig.tail._bookies = Scripted(rig.port)
    return rig


async def closed(count=COUNT, *, bookies=3, **shape):
    """A world with a closed ledger all of whose copies have arrived."""
    world = cluster(bookies)
    writer, _ = await written(world, count, **shape)
    await settled(world, writer.ledger, count)
    await writer.close()
    return world, writer.ledger


def holders(world, ledger, entry=WANTED):
    return world.metadata_of(ledger).bookies_of(entry)


def drop(world, ledger, *names):
    """These bookies never had the wanted entry, and answer so."""
    for name in names:
        del world.bookies[name].ledgers[ledger].entries[WANTED]


# -- three negative answers (seed 002 L24) --------------------------------------------------------


@pytest.mark.parametrize("shape", [{"qw": 2, "qa": 2, "e": 2}, {}, {"e": 5, "qw": 5, "qa": 3}])
async def test_a_batch_that_ended_before_the_entry_is_no_denial(shape):
    """Row seed 002 L24: only an explicit denial is evidence."""
    world, ledger = await closed(bookies=5, **shape)
    rig = await scripted(world, ledger)
    *others, last = holders(world, ledger)
    rig.port.replies = dict.fromkeys(others, DENIES) | {last: ENDED_BEFORE}
    for _ in range(3):
        with pytest.raises(EntryUnknown, match=f"{last} may have it"):
            await rig.reader.read(WANTED, WANTED, 1000)
    rig.port.replies[last] = DENIES
    with pytest.raises(EntryLost):
        await rig.reader.read(WANTED, WANTED, 1000)


async def test_a_batch_that_ended_is_continued_by_a_request_for_the_next_entry():
    """Row seed 002 L24: the entries behind the end of a batch are asked for, not passed."""
    world, ledger = await closed()
    rig = await scripted(world, ledger)
    asked = []

    def one_at_a_time(first, last):
        asked.append(first)
        return ReadManyReply(Status.OK, [entry_of(world, ledger, first)])

    rig.port.replies = dict.fromkeys(holders(world, ledger), one_at_a_time)
    assert payloads(await rig.reader.read(0, COUNT - 1, 10_000)) == expected(0, COUNT - 1)
    assert asked == list(range(COUNT))


def entry_of(world, ledger, entry):
    return world.bookies[holders(world, ledger, entry)[0]].ledgers[ledger].entries[entry]


async def test_a_tail_answer_with_a_lower_lac_is_no_denial():
    """Row seed 002 L24: what a bookie with a lower LAC answers is no evidence."""
    world = cluster()
    writer, told = await grown(world, 4)
    rig = await scripted(world, writer.ledger)
    first, *others = world.metadata_of(writer.ledger).last_fragment.ensemble
    rig.port.replies = dict.fromkeys([first, *others], ReadReply(Status.OK, lac=0))
    waiting = asyncio.ensure_future(rig.tail.read_next(2, 3.0))
    tail = await waiting
    assert (tail.payload, tail.lac, tail.ended) == (None, 0, False)
    rig.port.replies = dict.fromkeys(others, ReadReply(Status.OK, lac=0))
    tail = await rig.tail.read_next(2, 3.0)
    assert bytes(tail.payload) == b"entry 2"
    assert told.errors == [type(None)] * 4


# -- one replica is silent (seed 002 L17) ---------------------------------------------------------


@pytest.mark.parametrize(("e", "qw", "qa"), [(2, 2, 2), (3, 3, 2), (4, 3, 2)])
@pytest.mark.parametrize("comes_back", ["with the entry", "without it", "in limbo"])
async def test_a_silent_replica_is_waited_for_however_long_and_one_answer_ends_it(
    e, qw, qa, comes_back
):
    """Row seed 002 L17: enough denials are no evidence while one replica is silent; L21, L22."""
    world, ledger = await closed(bookies=e, e=e, qw=qw, qa=qa)
    *others, silent = holders(world, ledger)
    drop(world, ledger, *others)
    world.bookies[silent].crash()
    rig = await reader_of(world, ledger)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + DAY_S
    while loop.time() < end_s:
        with pytest.raises(EntryUnknown, match=f"{silent} may have it"):
            await rig.reader.read(WANTED, WANTED, 1000)
        await asyncio.sleep(600)
    if comes_back != "with the entry":
        drop(world, ledger, silent)
    if comes_back == "in limbo":
        world.bookies[silent].begin_limbo(ledger + 1)
    world.bookies[silent].restart()
    if comes_back == "with the entry":
        assert payloads(await rig.reader.read(WANTED, WANTED, 1)) == expected(WANTED, WANTED)
        return
    with pytest.raises(EntryLost) as lost:
        await rig.reader.read(WANTED, WANTED, 1000)
    answers = {copy.bookie: copy.answer for copy in lost.value.copies}
    last = CopyAnswer.LOST if comes_back == "in limbo" else CopyAnswer.DENIED
    assert answers == dict.fromkeys(others, CopyAnswer.DENIED) | {silent: last}
    assert judge(lost.value.copies, qa) is Verdict.COMPLETE


# -- what a status is worth (seed 002 L18 to L22) --------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ((Status.NO_ENTRY, Status.NO_LEDGER, Status.NO_ENTRY), Verdict.COMPLETE),
        ((Status.NO_ENTRY, Status.NO_ENTRY, Status.UNKNOWN_LEDGER_STATE), Verdict.COMPLETE),
        (
            (Status.NO_ENTRY, Status.UNKNOWN_LEDGER_STATE, Status.UNKNOWN_LEDGER_STATE),
            Verdict.NON_AUTHORITATIVE,
        ),
        ((Status.UNKNOWN_LEDGER_STATE,) * 3, Verdict.NON_AUTHORITATIVE),
        ((Status.NO_ENTRY, Status.NO_ENTRY, SILENT), None),
        ((Status.NO_ENTRY, Status.NO_ENTRY, Status.IO_ERROR), None),
        ((Status.NO_ENTRY, Status.NO_ENTRY, Status.OVERLOADED), None),
        ((Status.UNKNOWN_LEDGER_STATE, Status.UNKNOWN_LEDGER_STATE, SILENT), None),
    ],
)
async def test_the_evidence_names_what_each_bookie_answered_and_is_worth(answers, verdict):
    """Row seed 002 L18, L19, L21, L22 at the reader; the whole table is in test_loss.py."""
    world, ledger = await closed()
    rig = await scripted(world, ledger)
    names = holders(world, ledger)
    rig.port.replies = {n: ReadManyReply(one) for n, one in zip(names, answers, strict=True)}
    with pytest.raises(EntryUnknown if verdict is None else EntryLost) as error:
        await rig.reader.read(WANTED, WANTED, 1000)
    if verdict is None:
        return
    assert (error.value.ledger, error.value.entry) == (ledger, WANTED)
    assert judge(error.value.copies, 2) is verdict
    worth = {copy.bookie: copy.status for copy in error.value.copies}
    full, under = AuthoritativeStatus.FULLY_AUTHORITATIVE, AuthoritativeStatus.UNDERREPLICATION
    limbo = Status.UNKNOWN_LEDGER_STATE
    assert worth == {
        n: under if one is limbo else full for n, one in zip(names, answers, strict=True)
    }


async def test_a_bookie_whose_copies_were_moved_is_not_asked():
    """Row seed 002 L20: repair took it out of the write set, so its answer does not matter."""
    world, ledger = await closed(bookies=4)
    rig = await scripted(world, ledger)
    old = holders(world, ledger)[0]
    (new,) = set(world.bookies) - set(world.metadata_of(ledger).last_fragment.ensemble)
    world.bookies[new].ledgers[ledger] = world.bookies[old].ledgers[ledger]
    await move_copies(world, ledger, old, new)
    rig.port.replies = dict.fromkeys(set(world.bookies) - {new}, DENIES)
    assert payloads(await rig.reader.read(WANTED, WANTED, 1)) == expected(WANTED, WANTED)
    asked = []
    rig.port.replies[old] = lambda first, last: asked.append(first) or DENIES
    assert payloads(await rig.reader.read(0, 0, 1)) == expected(0, 0)
    assert asked == []


async def move_copies(world, ledger, old, new):
    """Repair moves the copies of one bookie to another."""

    def change(metadata):
        fragments = tuple(
            one._replace(ensemble=tuple(new if b == old else b for b in one.ensemble))
            for one in metadata.fragments
        )
        return replace(metadata, fragments=fragments)

    await change_metadata(world, ledger, change)


# -- any Qa - 1 are down (seed 002 L44, row B9) ----------------------------------------------------


@pytest.mark.parametrize(("e", "qw", "qa"), [(3, 3, 2), (2, 2, 2), (5, 5, 3), (6, 3, 2)])
async def test_with_any_qa_less_one_of_a_write_set_down_a_reader_reaches_the_end(e, qw, qa):
    """Row seed 002 L44: each set of Qa - 1 bookies of a write set, for each write set.

    Qa acknowledged copies are all there are: the rest of the write set never got the entry.
    """
    for start, down in product(range(e), combinations(range(qw), qa - 1)):
        world, ledger = await closed(2 * e, bookies=e, e=e, qw=qw, qa=qa)
        gone = {holders(world, ledger, start)[index] for index in down}
        leave_qa_copies(world, ledger, 2 * e, gone)
        for name in gone:
            world.bookies[name].crash()
        rig = await reader_of(world, ledger)
        found = []
        while len(found) < 2 * e:
            found += await rig.reader.read(len(found), 2 * e - 1, 1000)
        assert payloads(found) == expected(0, 2 * e - 1)


def leave_qa_copies(world, ledger, count, gone):
    """Each entry is on Qa bookies only: on one that stays, and on as many of `gone` as it can."""
    metadata = world.metadata_of(ledger)
    for entry in range(count):
        staying = [name for name in metadata.bookies_of(entry) if name not in gone]
        for name in staying[1 : 1 + metadata.write_quorum - metadata.ack_quorum]:
            del world.bookies[name].ledgers[ledger].entries[entry]


# -- hostile bookies -------------------------------------------------------------------------------


BODIES = st.lists(
    st.one_of(
        st.just("asked"),  # the next entry, as it should be
        st.sampled_from(["flipped", "other ledger", "other entry", "empty", "cut"]),
    ),
    max_size=8,
)
STATUSES = st.one_of(
    st.just(Status.OK),
    st.sampled_from([one for one in Status if one not in (Status.NO_ENTRY, Status.NO_LEDGER)]),
    st.integers(0, 2**16).filter(lambda code: code not in {int(one) for one in Status}),
)
HOSTILE = st.tuples(STATUSES, BODIES, st.integers(-1, COUNT - 1))


def hostile_reply(world, ledger, first, plan):
    status, bodies, lac = plan
    made = []
    for number, kind in enumerate(bodies):
        entry = first + number
        body = entry_bytes(ledger, entry, b"entry %d" % entry)
        made.append(
            {
                "asked": body,
                "flipped": body[:-1] + bytes([body[-1] ^ 1]),
                "other ledger": entry_bytes(ledger + 1, entry, b"entry %d" % entry),
                "other entry": entry_bytes(ledger, entry + 1, b"entry %d" % entry),
                "empty": b"",
                "cut": body[:20],
            }[kind]
        )
    return ReadManyReply(status, made, lac)


@settings(max_examples=60, deadline=None)
@given(hostile=HOSTILE, last=st.integers(WANTED, COUNT - 1))
def test_a_hostile_bookie_neither_denies_nor_delivers(hostile, last):
    """Unknown statuses, other entries than asked, too many: the others' denials stay too few, and
    what is delivered is what was written, up to the last entry that was asked for.
    """

    async def run():
        world, ledger = await closed()
        rig = await scripted(world, ledger)
        *others, bad = holders(world, ledger)
        rig.port.replies = dict.fromkeys(others, DENIES)
        rig.port.replies[bad] = lambda first, _: hostile_reply(world, ledger, first, hostile)
        try:
            entries = await rig.reader.read(WANTED, last, 10_000)
        except EntryLost:
            assert hostile[0] is Status.UNKNOWN_LEDGER_STATE, "it says that it lost the entry"
        except Unauthorized:
            assert hostile[0] is Status.UNAUTHORIZED, "it refuses the key"
        except EntryUnknown:
            pass
        else:
            assert payloads(entries) == expected(WANTED, entries[-1][0])
            assert entries[-1][0] <= last

    simulate(run())


@settings(max_examples=60, deadline=None)
@given(
    status=STATUSES,
    kind=st.sampled_from(["asked", "flipped", "other ledger", "other entry", "cut"]),
    lac=st.integers(-1, COUNT),
)
def test_a_hostile_tail_answer_delivers_nothing_above_its_lac(status, kind, lac):
    """An LAC below the entry that came with it: the entry is not delivered."""

    async def run():
        world = cluster()
        writer = await create(world)
        told = Told(writer)
        for number in range(COUNT):
            await add_one(world, told, number)
        rig = await scripted(world, writer.ledger)
        first, *others = rig.tail._order(WANTED)
        made = hostile_reply(world, writer.ledger, WANTED, (status, [kind], lac))
        rig.port.replies = dict.fromkeys(others, ReadReply(Status.OK, lac=0))
        rig.port.replies[first] = ReadReply(made.status, bytes(made.bodies[0]), lac)
        try:
            tail = await rig.tail.read_next(WANTED, 2.0)
        except LedgerError as error:
            assert isinstance(error, EntryUnknown)
            return
        if tail.payload is not None:
            assert lac >= WANTED and bytes(tail.payload) == b"entry 2"

    simulate(run())


async def test_an_entry_that_comes_with_a_lower_lac_is_not_delivered():
    """The bookie has the entry, and does not know that it is confirmed: it may be cut off yet."""
    world = cluster()
    writer, told = await grown(world, 3)
    rig = await scripted(world, writer.ledger)
    first, *_ = rig.tail._order(WANTED)
    body = entry_bytes(writer.ledger, WANTED, b"entry 2")
    rig.port.replies[first] = ReadReply(Status.OK, body, WANTED - 1)
    tail = await rig.tail.read_next(WANTED, 2.0)
    assert (tail.payload, tail.lac) == (None, WANTED - 1)
    await add_one(world, told, 3)
    tail = await rig.tail.read_next(WANTED, 2.0)
    assert (bytes(tail.payload), tail.lac) == (b"entry 2", WANTED)
