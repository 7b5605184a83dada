"""OffsetFetch with `require_stable` while offsets of transactions are pending."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, Topic, case
from tests.compat.differential.transactional import Writer, writer

KEY = 9
BATCHED_FROM = 8


def _fetch(script: Script, group: str, topics: list[dict[str, Any]] | None, stable: bool) -> None:
    if script.version < BATCHED_FROM:
        script.ask(group_id=group, topics=topics, require_stable=stable)
        return
    row = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    script.ask(groups=[row], require_stable=stable)


def _pending(script: Script) -> tuple[Topic, Writer, str]:
    topic, mine, group = script.topic("one", partitions=2), writer(script), script.name("group")
    script.coordinator(group)
    mine.add_group(group)
    row = {"partition_index": 1, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": topic.name, "partitions": [row]}]
    fields = {"generation_id": -1, "member_id": "", "topics": topics}
    script.prepare(28, 3, **mine.ref, group_id=group, **fields)
    return topic, mine, group


@case(KEY, since=7, transactions=True)
def pending_offsets(script: Script) -> None:
    topic, mine, group = _pending(script)
    rows = [{**topic.ref, "partition_indexes": [0, 1]}]
    for wanted in (rows, None):
        for stable in (False, True):
            _fetch(script, group, wanted, stable)
    mine.end(commit=True)
    for wanted in (rows, None):
        _fetch(script, group, wanted, True)


@case(KEY, since=7, transactions=True)
def offsets_that_were_aborted(script: Script) -> None:
    topic, mine, group = _pending(script)
    mine.end(commit=False)
    for wanted in ([{**topic.ref, "partition_indexes": [0, 1]}], None):
        _fetch(script, group, wanted, True)


@case(KEY, since=7, transactions=True)
def another_partition_and_another_group(script: Script) -> None:
    topic, _, group = _pending(script)
    _fetch(script, group, [{**topic.ref, "partition_indexes": [0]}], True)
    other = script.name("other")
    script.coordinator(other)
    _fetch(script, other, [{**topic.ref, "partition_indexes": [1]}], True)
