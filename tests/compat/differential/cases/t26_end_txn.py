"""EndTxn in every state. From v5 (protocol 2) it raises the epoch at each end."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, case
from tests.compat.differential.transactional import (
    BUSY,
    Writer,
    coordinated,
    initialise,
    reading,
    writer,
)

KEY = 26
FETCH = 1
PROTOCOL_2_FROM = 5
BOTH = (True, False)


def _end(script: Script, mine: Writer, *, commit: bool, **changed: Any) -> Answer:
    return script.ask(**{**mine.ref, "committed": commit, **changed})


def _ended(script: Script, mine: Writer, *, commit: bool) -> None:
    """End the transaction, and repeat the request until its markers are written."""
    script.settled(_end(script, mine, commit=commit), BUSY)
    script.settled(_end(script, mine, commit=commit), BUSY)


@case(KEY, transactions=True)
def nothing_was_begun(script: Script) -> None:
    for commit in BOTH:
        mine = writer(script, f"id-{commit}")
        _end(script, mine, commit=commit)
        script.settled(_end(script, mine, commit=commit), BUSY)


@case(KEY, transactions=True)
def an_open_transaction_and_a_retry(script: Script) -> None:
    topic = script.topic("one")
    for commit in BOTH:
        mine = writer(script, f"id-{commit}")
        mine.add(topic)
        mine.write(topic, 2, 0)
        _ended(script, mine, commit=commit)
        script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def the_other_outcome_after_the_end(script: Script) -> None:
    topic = script.topic("one")
    for commit in BOTH:
        mine = writer(script, f"id-{commit}")
        mine.add(topic)
        mine.write(topic, 2, 0)
        _ended(script, mine, commit=commit)
        _end(script, mine, commit=not commit)


@case(KEY, transactions=True)
def a_transaction_without_records(script: Script) -> None:
    topic = script.topic("one")
    for commit in BOTH:
        mine = writer(script, f"id-{commit}")
        mine.add(topic)
        _ended(script, mine, commit=commit)


@case(KEY, transactions=True)
def a_group_without_offsets(script: Script) -> None:
    group = script.name("group")
    script.coordinator(group)
    for commit in BOTH:
        mine = writer(script, f"id-{commit}")
        mine.add_group(group)
        _ended(script, mine, commit=commit)


@case(KEY, transactions=True)
def unknown_ids(script: Script) -> None:
    mine = writer(script)
    for name in (script.name("missing"), ""):
        coordinated(script, name or "x")
        for commit in BOTH:
            _end(script, mine, commit=commit, transactional_id=name)


@case(KEY, transactions=True)
def wrong_producers_and_epochs(script: Script) -> None:
    topic, mine, other = script.topic("one"), writer(script), writer(script, "other")
    places = ((other.producer, 0), (-1, 0), (mine.producer, 1), (mine.producer, -1))
    for producer, epoch in (*places, (mine.producer, 32_767)):
        _end(script, mine, commit=True, producer_id=producer, producer_epoch=epoch)
    mine.add(topic)
    for producer, epoch in (*places, (mine.producer, 32_767)):
        _end(script, mine, commit=True, producer_id=producer, producer_epoch=epoch)


@case(KEY, transactions=True)
def a_fenced_epoch(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    initialise(script, mine.name)
    for commit in BOTH:
        _end(script, mine, commit=commit)
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def one_transaction_after_the_other(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    raises = script.version >= PROTOCOL_2_FROM
    sequence = 0
    for commit in (True, False, True):
        mine.add(topic)
        mine.write(topic, 2, sequence)
        _ended(script, mine, commit=commit)
        mine.epoch += raises
        sequence = 0 if raises else sequence + 2
    script.other(61, 0, topics=[{"name": topic.name, "partition_indexes": [0]}])


@case(KEY, since=PROTOCOL_2_FROM, transactions=True)
def the_epoch_before_and_others(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    for _ in range(2):
        mine.add(topic)
        mine.write(topic, 1, 0)
        _ended(script, mine, commit=True)
        mine.epoch += 1
    for epoch in (0, 1, 2, 3):
        _end(script, mine, commit=True, producer_epoch=epoch)
    for epoch in (0, 1, 2):
        _end(script, mine, commit=False, producer_epoch=epoch)


@case(KEY, since=PROTOCOL_2_FROM, transactions=True)
def aborts_without_a_transaction(script: Script) -> None:
    mine = writer(script)
    for epoch in range(3):
        script.settled(_end(script, mine, commit=False, producer_epoch=epoch), BUSY)
        script.settled(_end(script, mine, commit=False, producer_epoch=epoch), BUSY)
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def a_late_copy_during_the_next_transaction(script: Script) -> None:
    """The network delays an EndTxn. A copy of it ends its transaction, and then the first arrives.

    In protocol 1 it ends the part of the next transaction that is there: nothing tells it from that
    one's EndTxn. The next partition begins another transaction. Protocol 2 refuses the old epoch.
    """
    raises = script.version >= PROTOCOL_2_FROM
    for late in BOTH:
        topic, mine = script.topic(f"two-{late}", partitions=2), writer(script, f"id-{late}")
        mine.add(topic)
        mine.write(topic, 1, 0)
        _ended(script, mine, commit=late)
        mine.epoch += raises
        mine.add(topic)
        mine.write(topic, 1, 0 if raises else 1)
        delayed = _end(script, mine, commit=late, producer_epoch=0, on="late")
        script.settled(delayed, BUSY)
        mine.add(topic, 1)
        mine.write(topic, 1, 0, partition=1)
        _ended(script, mine, commit=not late)
        for partition in (0, 1):
            script.other(FETCH, 11, **reading(topic.name, partition=partition))


@case(KEY, transactions=True)
def both_protocols_in_turn(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.one(topic, 1, 0, commit=True)
    mine.add(topic)
    mine.write(topic, 1, 1)
    _ended(script, mine, commit=True)
    mine.epoch += script.version >= PROTOCOL_2_FROM
    mine.add(topic)
    mine.end(commit=False)
    script.other(65, 0, transactional_ids=[mine.name])
