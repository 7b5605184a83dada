"""Choose the losses that an operator names by their offsets. Pure.

Only whole losses can be accepted, and only with exact offsets: a part of a loss has no known end,
and offsets that are *at most* lost may belong to a record that comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.gaps import OffsetRange
from ledger.core.loss import waited_for
from ledger.core.text import names_of
from ledger.errors import InvalidArgument

_NAMED_MAX = 5  # losses that an error names


def choose_losses(
    wanted: OffsetRange, found: Sequence[LostRange], accepted: StreamLosses
) -> list[LostRange]:
    """Return the losses that cover `wanted` without those that were accepted before.

    `found` are the losses of the stream that nobody accepted, those that are not proved too.
    Raises InvalidArgument if an offset of `wanted` is not lost, or is part of a larger loss.
    """
    chosen: list[LostRange] = []
    at = wanted.first
    while at <= wanted.last:
        known = accepted.at_offset(at)
        if known is not None:
            at = known.offsets.last + 1
            continue
        loss = next((each for each in found if _holds(each, at)), None)
        if loss is None:
            raise InvalidArgument(f"offset {at} is not lost; {_named(found)}")
        _check(loss, wanted)
        chosen.append(loss)
        at = loss.offsets.last + 1
    return chosen


def _holds(loss: LostRange, offset: int) -> bool:
    return loss.offsets.first <= offset <= loss.offsets.last


def _check(loss: LostRange, wanted: OffsetRange) -> None:
    first, last, exact = loss.offsets
    if not loss.evidence.verdict.lost:
        bookies = names_of(waited_for(loss.evidence.copies))
        raise InvalidArgument(
            f"offsets {first} to {last} are not proved lost: {bookies} may have them. Start each "
            "of these bookies with what is left of its directory; if its disk is gone, stop it and "
            "pass --give-up"
        )
    if not exact:
        raise InvalidArgument(
            f"the ends of the loss at offset {first} are unknown, because an entry beside it "
            f"cannot be read now: see `gateway ledger gaps {loss.evidence.ledger}`"
        )
    if first < wanted.first or last > wanted.last:
        raise InvalidArgument(
            f"offsets {wanted.first} to {wanted.last} end within the loss {first} to {last}, which "
            f"can be accepted only as a whole: pass --offsets {first}-{last}"
        )


def _named(found: Sequence[LostRange]) -> str:
    lost = [each for each in found if each.evidence.verdict.lost]
    texts = [f"{each.offsets.first}-{each.offsets.last}" for each in lost[:_NAMED_MAX]]
    if not texts:
        return "this partition has no loss that is proved and not accepted"
    more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
    return f"the losses that can be accepted are {', '.join(texts)}{more}"
