"""Goal: the right step for each thing that can be wrong, and none that could lose data.

Method: the pure decisions, table by table.
"""

from dataclasses import replace

import pytest

from ledger.client.client import WANTED_QUORUM
from ledger.core.ledger_metadata import Fragment
from ledger.ports.bookies import BookieInfo
from ledger.repair.checker import UNKNOWN_CONTENTS, ReplicaContents, check_ledger, fragments_of
from ledger.repair.entry_ranges import ranges_of
from ledger.repair.plan import (
    BookieView,
    EndLimbo,
    FillCopies,
    FragmentChanged,
    QuorumSizes,
    RecoverLedger,
    ReplaceBookie,
    WidenEnsemble,
    plan_repair,
    wider_quorum,
    with_more_bookies,
    with_replacement,
)
from tests.repair.test_checker import LIMBO, held, ledger

FULL = held(*range(10))
LIVE = BookieInfo()
READ_ONLY = BookieInfo(read_only=True)


def plan(metadata, replicas, *, lac=9, registered="abcd", gone="", refused="", read_only=""):
    infos = {b: READ_ONLY if b in read_only else LIVE for b in registered}
    view = BookieView(infos, replicas, frozenset(gone), frozenset(refused))
    return plan_repair(metadata, lac, check_ledger(metadata, lac, replicas), view)


def closed(**how):
    return ledger([(0, "abc")], last=9, e=3, qw=3, qa=2, **how)


def everywhere(**other):
    return {"a": FULL, "b": FULL, "c": FULL} | other


def test_a_whole_ledger_needs_nothing():
    assert plan(closed(), everywhere()).clean


def test_what_a_live_bookie_lacks_is_filled_in_place():
    ((step,), reasons) = plan(closed(), everywhere(c=held(0, 1)))
    assert isinstance(step, FillCopies)
    assert (step.gap.bookie, step.missing, reasons) == ("c", ranges_of(range(2, 10)), ())


def test_a_gone_bookie_is_replaced_also_when_it_still_answers():
    for registered in ("ab", "abc"):
        ((step,), _) = plan(closed(), everywhere(), registered=registered, gone="c")
        assert isinstance(step, ReplaceBookie)
        assert step.bookie == "c"


@pytest.mark.parametrize(
    ("replica", "registered", "reason"),
    [
        (UNKNOWN_CONTENTS, "abcd", "c does not report which entries it has"),
        (UNKNOWN_CONTENTS, "abd", "c is absent"),
    ],
)
def test_a_bookie_that_says_nothing_is_waited_for(replica, registered, reason):
    steps, reasons = plan(closed(), everywhere(c=replica), registered=registered)
    assert (steps, reasons) == ((), (reason,))


def test_a_read_only_bookie_that_lacks_copies_is_replaced():
    ((step,), _) = plan(closed(), everywhere(c=held(0)), read_only="c")
    assert isinstance(step, ReplaceBookie)


def test_a_bookie_that_does_not_take_a_good_copy_for_a_bad_one_is_replaced():
    bad = held(*range(10), damaged=[4])
    ((step,), _) = plan(closed(), everywhere(c=bad), refused="c")
    assert isinstance(step, ReplaceBookie)


def test_a_share_with_an_entry_that_nobody_shows_is_never_swapped_in():
    most = held(*range(9))
    steps, reasons = plan(closed(), {"a": most, "b": most}, registered="abd", gone="c")
    assert steps == ()
    assert reasons == ("entries 9 cannot be read from any bookie now",)


def test_an_entry_shown_by_nobody_is_not_lost_while_one_that_may_have_it_is_away():
    most = held(*range(9))
    _, reasons = plan(closed(), {"a": most, "b": LIMBO}, registered="ab", gone="c")
    assert "entries 9 cannot be read from any bookie now" in reasons
    assert not any("lost" in reason for reason in reasons)


def test_the_rest_of_a_share_is_filled_around_a_lost_entry():
    steps, reasons = plan(closed(), {"a": held(*range(9)), "b": held(), "c": held()})
    assert [step.missing for step in steps] == [ranges_of(range(9))] * 2
    assert len(reasons) == 1


def test_the_open_last_fragment_is_left_alone_while_its_bookies_are_there():
    metadata = ledger([(0, "abc")], e=3, qw=3, qa=2)
    steps, reasons = plan(metadata, everywhere(c=held(0)))
    assert steps == ()
    assert reasons == ("copies are missing in the open last fragment",)


def test_the_open_last_fragment_of_a_gone_bookie_is_fenced_never_swapped():
    metadata = ledger([(0, "abc")], e=3, qw=3, qa=2)
    ((step,), _) = plan(metadata, {"a": FULL, "b": FULL}, registered="abd", gone="c")
    assert step == RecoverLedger(("c",), needs_spare=True)


def test_an_earlier_fragment_of_an_open_ledger_is_mended_without_fencing():
    metadata = ledger([(0, "abc"), (5, "abd")], e=3, qw=3, qa=2)
    replicas = {"a": FULL, "b": FULL, "d": held(*range(5, 10))}
    ((step,), _) = plan(metadata, replicas, registered="abd", gone="c")
    assert isinstance(step, ReplaceBookie)
    assert step.fragment.last == 4


def test_limbo_ends_once_nothing_is_missing():
    shown = ReplicaContents(ranges_of(range(10)), limbo=True)
    ((step,), _) = plan(closed(), everywhere(c=shown))
    assert step == EndLimbo("c")


def test_limbo_does_not_end_while_something_is_missing():
    shown = ReplicaContents(ranges_of(range(9)), limbo=True)
    ((step,), _) = plan(closed(), everywhere(c=shown))
    assert isinstance(step, FillCopies)


def test_limbo_does_not_end_in_a_ledger_whose_last_fragment_is_open():
    metadata = ledger([(0, "abc")], e=3, qw=3, qa=2)
    shown = ReplicaContents(ranges_of(range(10)), limbo=True)
    ((step,), _) = plan(metadata, everywhere(c=shown))
    assert step == RecoverLedger(("c",), needs_spare=False)


NARROW = ledger([(0, "ab"), (5, "ac")], last=9, e=2, qw=2, qa=2)


def wanting(text, metadata=NARROW):
    return replace(metadata, custom={WANTED_QUORUM: text})


@pytest.mark.parametrize(
    ("metadata", "quorum"),
    [
        (NARROW, None),
        (wanting(b"3,3,2"), QuorumSizes(3, 3, 2)),
        (wanting(b"5,3,2"), QuorumSizes(3, 3, 2)),
        (wanting(b"2,2,2"), None),
        (wanting(b"3,2,2"), None),
        (wanting(b"three"), None),
        (wanting(b"2,3,2"), None),
        (wanting(b"3,3,2", ledger([(0, "ab")], e=2, qw=2, qa=2)), None),  # open
        (wanting(b"5,5,2", ledger([(0, "abc")], last=9, e=3, qw=2, qa=2)), None),  # striped
    ],
)
def test_only_closed_ledgers_that_were_made_narrower_are_widened(metadata, quorum):
    assert wider_quorum(metadata) == quorum


def test_a_ledger_is_widened_only_when_nothing_else_is_missing():
    replicas = {"a": FULL, "b": FULL, "c": FULL}
    assert plan(wanting(b"3,3,2"), replicas).steps == (WidenEnsemble(QuorumSizes(3, 3, 2)),)
    ((step,), _) = plan(wanting(b"3,3,2"), replicas | {"b": held()})
    assert isinstance(step, FillCopies)


def test_widening_adds_members_at_the_end_and_changes_nothing_else():
    wide = with_more_bookies(NARROW, NARROW, QuorumSizes(3, 3, 2), {0: ("d",), 5: ("b",)})
    assert wide.fragments == (Fragment(0, ("a", "b", "d")), Fragment(5, ("a", "c", "b")))
    assert (wide.ensemble_size, wide.write_quorum, wide.ack_quorum) == (3, 3, 2)
    assert (wide.last_entry, wide.state) == (NARROW.last_entry, NARROW.state)
    assert with_more_bookies(wide, NARROW, QuorumSizes(3, 3, 2), {0: ("d",), 5: ("b",)}) is None
    with pytest.raises(FragmentChanged):
        with_more_bookies(
            replace(NARROW, token=7), NARROW, QuorumSizes(3, 3, 2), {0: ("d",), 5: ("b",)}
        )


def test_a_swap_changes_one_member_of_one_fragment():
    metadata = ledger([(0, "abc"), (5, "abc")], last=9, e=3, qw=3, qa=2)
    fragment = fragments_of(metadata, 9)[0]
    new = with_replacement(metadata, fragment, 1, "d")
    assert new.fragments == (Fragment(0, ("a", "d", "c")), Fragment(5, ("a", "b", "c")))
    assert with_replacement(new, fragment, 1, "d") is None


@pytest.mark.parametrize(
    "fragments",
    [
        [(0, "aec"), (5, "abc")],  # somebody else replaced the same bookie
        [(0, "abd"), (5, "abc")],  # the new bookie is a member already
        [(0, "abc"), (4, "abc"), (5, "abc")],  # other entries
    ],
)
def test_a_fragment_that_changed_since_it_was_copied_is_not_swapped(fragments):
    copied = fragments_of(ledger([(0, "abc"), (5, "abc")], last=9, e=3, qw=3, qa=2), 9)[0]
    now = ledger(fragments, last=9, e=3, qw=3, qa=2)
    with pytest.raises(FragmentChanged):
        with_replacement(now, copied, 1, "d")


def test_the_last_fragment_of_an_open_ledger_is_never_swapped():
    copied = fragments_of(ledger([(0, "abc")], last=9, e=3, qw=3, qa=2), 9)[0]
    with pytest.raises(FragmentChanged):
        with_replacement(ledger([(0, "abc")], e=3, qw=3, qa=2), copied, 1, "d")
