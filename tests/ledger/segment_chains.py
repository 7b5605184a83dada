"""Random lists of consecutive segments, for tests of what is looked up in them."""

from hypothesis import strategies as st

from ledger.core.segments import Segment


def chain(draw, sizes):
    """Consecutive segments of these record counts; None: in progress."""
    made, start = [], draw(st.integers(0, 1000))
    first = draw(st.integers(1, 100))
    for number, size in enumerate(sizes, first):
        segment = Segment(number=number, ledger=number, first_txid=start, start_sequence_id=start)
        if size is not None:
            segment = segment.complete(
                record_count=size,
                last_txid=start + size - 1,
                last_entry=0 if size else draw(st.integers(-1, 0)),
                last_slot=0,
                completion_ms=draw(st.integers(0, 1000)),
            )
        made.append(segment)
        start = segment.end_sequence_id
    return made


@st.composite
def streams(draw):
    sizes = draw(st.lists(st.integers(0, 20), max_size=12))
    return chain(draw, [*sizes, None] if draw(st.booleans()) else sizes)
