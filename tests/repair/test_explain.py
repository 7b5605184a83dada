"""Goal: the words say what is so, and what to do about it. Method: facts in, sentences out."""

import pytest

from ledger.core.ledger_metadata import LedgerState
from ledger.ports.bookies import BookieInfo
from ledger.repair.checker import UNKNOWN_CONTENTS, check_ledger
from ledger.repair.explain import LedgerFacts, ReplicaAnswer, explain_entry, explain_ledger
from ledger.repair.underreplicated_ledgers import RepairNote, UnderreplicatedLedger
from tests.repair.test_checker import LIMBO, held, ledger

FULL = held(*range(10))


def facts(metadata=None, replicas=None, *, registered="abc", read_only="", lac=9, **more):
    metadata = metadata or ledger([(0, "abc")], last=9, e=3, qw=3, qa=2)
    replicas = {"a": FULL, "b": FULL, "c": FULL} | (replicas or {})
    infos = {b: BookieInfo(read_only=b in read_only) for b in registered}
    more.setdefault("auditor", "audit-1")
    return LedgerFacts(
        metadata=metadata,
        lac=lac,
        registered=infos,
        replicas={b: h for b, h in replicas.items() if b in registered},
        found=check_ledger(metadata, lac, {b: h for b, h in replicas.items() if b in registered}),
        **more,
    )


def words(*args, **how):
    return "\n".join(explain_ledger(facts(*args, **how)))


def test_a_whole_ledger_is_said_to_be_whole():
    assert words() == (
        "The ledger is closed: entries 0 to 9, 0 bytes.\nEvery confirmed entry has all its copies."
    )


def test_each_state_is_told():
    open_one = ledger([(0, "abc")], e=3, qw=3, qa=2)
    recovering = ledger([(0, "abc")], e=3, qw=3, qa=2, state=LedgerState.IN_RECOVERY)
    assert "is open" in words(open_one)
    assert "gateway ledger recover" in words(recovering)
    assert "closed and empty" in words(ledger([(0, "abc")], last=-1), lac=-1)


def test_each_kind_of_trouble_with_a_bookie_is_told():
    assert "c is absent." in words(registered="ab")
    assert "c is in limbo" in words(replicas={"c": LIMBO})
    assert "c is registered, but does not report" in words(replicas={"c": UNKNOWN_CONTENTS})
    assert "c is read-only" in words(read_only="c")
    assert "c is being drained" in words(draining=frozenset("c"))


def test_what_is_missing_damaged_unreadable_and_lost_is_told_apart():
    some = held(*range(8), damaged=[3])
    assert "c lacks 3 copies that others have: entries 3, 8-9 (corrupt there: 3)." in words(
        replicas={"c": some}
    )
    lost = words(replicas={name: held(*range(9)) for name in "abc"})
    assert "none of their bookies has entries 9" in lost
    assert "Nothing was deleted" in lost
    waiting = words(replicas={"a": held(*range(9))}, registered="a")
    assert "Entries 9 cannot be read now" in waiting
    assert "Lost" not in waiting


def test_the_repair_is_told_since_when_by_whom_and_why_not():
    mark = UnderreplicatedLedger(1, frozenset("c"), 1_000, 0)
    note = RepairNote(reasons=("no other bookie can replace c",))
    said = words(registered="ab", mark=mark, note=note, worker="audit-2", now_ms=601_000)
    assert "on the repair list because of c for 10 minutes" in said
    assert "audit-2 is repairing it now" in said
    assert "The last attempt could not repair it: no other bookie can replace c." in said


def test_what_keeps_repair_from_happening_is_told():
    assert "not on the repair list: no audit has found it yet" in words(registered="ab")
    assert "start `bookie audit`" in words(registered="ab", auditor=None)
    assert "disabled" in words(registered="ab", enabled=False)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ([ReplicaAnswer.SHOWS, ReplicaAnswer.AWAY, ReplicaAnswer.AWAY], "can be read"),
        ([ReplicaAnswer.DENIES, ReplicaAnswer.DENIES, ReplicaAnswer.DENIES], "is lost: none of"),
        ([ReplicaAnswer.DENIES, ReplicaAnswer.LIMBO, ReplicaAnswer.LIMBO], "is lost: none of"),
        ([ReplicaAnswer.DENIES, ReplicaAnswer.DENIES, ReplicaAnswer.AWAY], ": c may have it"),
        ([ReplicaAnswer.DENIES, ReplicaAnswer.AWAY, ReplicaAnswer.LIMBO], ": b may have it"),
        (
            [ReplicaAnswer.DAMAGED, ReplicaAnswer.SILENT, ReplicaAnswer.DENIES],
            "may not be lost: a and b may have it",
        ),
    ],
)
def test_an_entry_is_judged_as_a_reader_would(said, verdict):
    lines = explain_entry(facts(), 0, dict(zip("abc", said, strict=True)))
    assert verdict in lines[-1]
    assert len(lines) == 4


def test_an_entry_above_the_end_or_the_lac_is_not_shown_to_readers():
    said = dict.fromkeys("abc", ReplicaAnswer.SHOWS)
    assert "not in the ledger" in explain_entry(facts(), 10, said)[0]
    open_one = ledger([(0, "abc")], e=3, qw=3, qa=2)
    assert "not known to be confirmed" in explain_entry(facts(open_one, lac=4), 5, said)[-1]
