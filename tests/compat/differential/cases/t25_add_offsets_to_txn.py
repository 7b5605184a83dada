"""AddOffsetsToTxn: groups, fencing, states."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, case
from tests.compat.differential.transactional import BUSY, Writer, coordinated, initialise, writer

KEY = 25


def _add(script: Script, mine: Writer, group: str, **changed: Any) -> Answer:
    return script.ask(**{**mine.ref, "group_id": group, **changed})


@case(KEY, transactions=True)
def a_group(script: Script) -> None:
    mine, group = writer(script), script.name("group")
    script.coordinator(group)
    for _ in range(2):
        script.settled(_add(script, mine, group), BUSY)
    mine.end(commit=True)
    script.settled(_add(script, mine, group), BUSY)


@case(KEY, transactions=True)
def odd_groups(script: Script) -> None:
    mine = writer(script)
    for group in ("", script.name("ä b/c")):
        _add(script, mine, group)


@case(KEY, transactions=True)
def unknown_ids(script: Script) -> None:
    mine, group = writer(script), script.name("group")
    for name in (script.name("missing"), ""):
        coordinated(script, name or "x")
        _add(script, mine, group, transactional_id=name)


@case(KEY, transactions=True)
def wrong_producers_and_epochs(script: Script) -> None:
    mine, other, group = writer(script), writer(script, "other"), script.name("group")
    for producer, epoch in ((other.producer, 0), (-1, 0), (mine.producer, 1), (mine.producer, -1)):
        _add(script, mine, group, producer_id=producer, producer_epoch=epoch)


@case(KEY, transactions=True)
def a_fenced_epoch(script: Script) -> None:
    mine, group = writer(script), script.name("group")
    initialise(script, mine.name)
    _add(script, mine, group)
