"""InitProducerId with transactional ids: epochs, fencing, timeouts, transactions that are open."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, case
from tests.compat.differential.transactional import BUSY, coordinated, reading, writer

KEY = 22
WITH_PRODUCER_FROM = 3
MAXIMUM_MS = 900_000


def _init(
    script: Script, name: str, producer: Any = -1, epoch: int = -1, timeout_ms: int = 60_000
) -> Answer:
    return script.ask(
        transactional_id=name,
        transaction_timeout=timeout_ms,
        producer_id=producer,
        producer_epoch=epoch,
    )


@case(KEY, transactions=True)
def a_new_id_and_its_next_epochs(script: Script) -> None:
    name = script.name("id")
    coordinated(script, name)
    script.settled(_init(script, name), BUSY)
    for _ in range(2):
        _init(script, name)


@case(KEY, transactions=True)
def odd_ids(script: Script) -> None:
    for name in ("", script.name("ä b/c"), script.name("x" * 300)):
        coordinated(script, name or "x")
        script.settled(_init(script, name), BUSY)


@case(KEY, transactions=True)
def an_id_of_32_kib(script: Script) -> None:
    name = script.name("x" * 32_600)
    coordinated(script, name)
    script.settled(_init(script, name), BUSY)


@case(KEY, transactions=True)
def timeouts(script: Script) -> None:
    name = script.name("id")
    coordinated(script, name)
    for timeout_ms in (0, -1, MAXIMUM_MS + 1, 2**31 - 1, MAXIMUM_MS, 1):
        script.settled(_init(script, name, timeout_ms=timeout_ms), BUSY)


@case(KEY, since=WITH_PRODUCER_FROM, transactions=True)
def with_its_present_epoch(script: Script) -> None:
    mine = writer(script)
    for epoch in (0, 1):
        script.settled(_init(script, mine.name, mine.producer, epoch), BUSY)


@case(KEY, since=WITH_PRODUCER_FROM, transactions=True)
def again_after_a_lost_reply(script: Script) -> None:
    mine = writer(script)
    for _ in range(2):
        _init(script, mine.name, mine.producer, 0)
    _init(script, mine.name, mine.producer, 1)
    _init(script, mine.name, mine.producer, 0)


@case(KEY, since=WITH_PRODUCER_FROM, transactions=True)
def with_wrong_producers_and_epochs(script: Script) -> None:
    mine, other = writer(script), writer(script, "other")
    for producer, epoch in (
        (mine.producer, 7),
        (mine.producer, 32_766),
        (mine.producer, 32_767),
        (other.producer, 0),
        (mine.producer, -1),
        (-1, 0),
        (-1, 5),
        (mine.producer, -2),
    ):
        _init(script, mine.name, producer, epoch)
    _init(script, mine.name, mine.producer, 0)


@case(KEY, since=WITH_PRODUCER_FROM, transactions=True)
def with_a_producer_and_an_unknown_id(script: Script) -> None:
    name = script.name("unknown")
    coordinated(script, name)
    other = writer(script, "other")
    _init(script, name, other.producer, 3)
    _init(script, name)


@case(KEY, transactions=True)
def while_a_transaction_is_open(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    _init(script, mine.name)
    script.settled(_init(script, mine.name), BUSY)
    script.other(26, 3, **mine.ref, committed=True)
    script.other(1, 11, **reading(topic.name))


@case(KEY, since=WITH_PRODUCER_FROM, transactions=True)
def with_its_epoch_while_a_transaction_is_open(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    _init(script, mine.name, mine.producer, 0)
    script.settled(_init(script, mine.name, mine.producer, 0), BUSY)
    _init(script, mine.name, mine.producer, 0)


@case(KEY, transactions=True)
def after_a_commit_and_an_abort(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    for epoch, commit in enumerate((True, False)):
        mine.epoch = epoch
        mine.one(topic, 1, 0, commit=commit)
        _init(script, mine.name)


@case(KEY, transactions=True)
def another_timeout(script: Script) -> None:
    mine = writer(script)
    _init(script, mine.name, timeout_ms=5_000)
    script.other(65, 0, transactional_ids=[mine.name])
