"""FindCoordinator of transactional ids."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 10
MANY_FROM = 4
TRANSACTION = 1


@case(KEY, since=1, transactions=True)
def ids(script: Script) -> None:
    for name in (script.name("id"), script.name("ä b/c"), "x" * 300):
        script.settled(script.ask(key=name, key_type=TRANSACTION, coordinator_keys=[name]))


@case(KEY, since=1, transactions=True)
def an_empty_id(script: Script) -> None:
    script.settled(script.ask(key="", key_type=TRANSACTION, coordinator_keys=[""]))


@case(KEY, since=MANY_FROM, transactions=True)
def many_ids(script: Script) -> None:
    names = [script.name(word) for word in ("a", "b")]
    script.settled(script.ask(key_type=TRANSACTION, coordinator_keys=names))
    script.ask(key_type=TRANSACTION, coordinator_keys=[])


@case(KEY, since=1, transactions=True)
def the_internal_topic(script: Script) -> None:
    name = script.name("id")
    script.settled(script.ask(key=name, key_type=TRANSACTION, coordinator_keys=[name]))
    topics = [{"name": "__transaction_state"}]
    found = script.other(3, 12, topics=topics, allow_auto_topic_creation=False)
    script.settled(found)
