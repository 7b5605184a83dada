"""Goal: an operator gives up whole losses that are proved, and nothing else.

Method: tables of ranges against made-up losses.
"""

import pytest

from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.gaps import Acceptance, Evidence, OffsetRange
from ledger.core.loss import CopyAnswer, Verdict, state_of
from ledger.errors import InvalidArgument
from ledger.losses.choice import choose_losses


def loss(entry, first, last, *, proved=True, exact=True, accepted=False):
    answer = CopyAnswer.DENIED if proved else CopyAnswer.UNKNOWN
    copies = tuple(state_of(name, answer) for name in "abc")
    verdict = Verdict.COMPLETE if proved else Verdict.NONE
    acceptance = Acceptance(1, "me") if accepted else None
    evidence = Evidence(7, verdict, copies, acceptance=acceptance)
    return LostRange(1, entry, entry, OffsetRange(first, last, exact), evidence)


FOUND = [
    loss(1, 10, 19),
    loss(2, 20, 24),
    loss(5, 40, 49),
    loss(7, 60, 69, proved=False),
    loss(9, 80, 89, exact=False),
]
ACCEPTED = StreamLosses((loss(3, 25, 29, accepted=True),))


@pytest.mark.parametrize(
    ("wanted", "entries"),
    [
        ((10, 19), [1]),
        ((10, 24), [1, 2]),
        ((10, 29), [1, 2]),
        ((20, 26), [2]),
        ((25, 29), []),
        ((26, 27), []),
        ((40, 49), [5]),
    ],
)
def test_whole_losses_are_chosen_without_those_that_were_accepted(wanted, entries):
    chosen = choose_losses(OffsetRange(*wanted), FOUND, ACCEPTED)
    assert [each.first for each in chosen] == entries


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((0, 5), "offset 0 is not lost; the losses that can be accepted are 10-19, 20-24, 40-49"),
        ((9, 19), "offset 9 is not lost"),
        ((10, 30), "offset 30 is not lost"),
        ((10, 40), "offset 30 is not lost"),
        ((11, 19), "within the loss 10 to 19, .* pass --offsets 10-19"),
        ((10, 18), "within the loss 10 to 19"),
        ((15, 15), "within the loss 10 to 19"),
        ((27, 33), "offset 30 is not lost"),
        ((60, 69), "are not proved lost: a, b and c may have them.*--give-up"),
        ((80, 89), "the ends of the loss at offset 80 are unknown"),
    ],
)
def test_anything_else_is_refused_with_what_to_change(wanted, message):
    with pytest.raises(InvalidArgument, match=message):
        choose_losses(OffsetRange(*wanted), FOUND, ACCEPTED)


def test_without_any_loss_the_refusal_says_so():
    with pytest.raises(InvalidArgument, match="has no loss that is proved and not accepted"):
        choose_losses(OffsetRange(0, 1), [], ACCEPTED)
