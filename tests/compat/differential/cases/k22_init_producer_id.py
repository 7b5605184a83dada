"""InitProducerId of idempotent producers: new ids, and what is refused."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 22


@case(KEY)
def new_ids(script: Script) -> None:
    for timeout in (60_000, 0, -1):
        script.ask(transactional_id=None, transaction_timeout=timeout)


@case(KEY, since=3)
def a_present_id(script: Script) -> None:
    first = script.ask(transactional_id=None, transaction_timeout=60_000)
    producer, epoch = first.take("producer_id"), first.take("producer_epoch")
    for its_id, its_epoch in ((producer, epoch), (producer, 7), (producer, -1), (-1, 0), (77, 0)):
        script.ask(
            transactional_id=None,
            transaction_timeout=60_000,
            producer_id=its_id,
            producer_epoch=its_epoch,
        )


@case(KEY)
def an_empty_transactional_id(script: Script) -> None:
    script.ask(transactional_id="", transaction_timeout=60_000)
