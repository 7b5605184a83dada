"""The shapes of what `gateway job replay` prints."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, text, truth, whole

REPLAYED: Final = Shape(
    fields=(
        text("topic", "The archived topic, with its id if the archive has several of that name."),
        text("to_topic", "The topic to which the records were written."),
        text("state", "Where the state of the replay is, from which a later run resumes."),
        truth("resumed", "Whether an earlier run began the replay."),
        whole("records", "Number of records of all plans, which the topic now has."),
        whole("written", "Number of records that this run wrote."),
        whole("beyond", "Number of archived offsets that no plan covers."),
        whole("plan", "Number of the plan, from 1; --continue makes another one."),
        whole("records_unproved", "Number of records that were archived without sums."),
    ),
    rows="partitions",
    columns=(
        whole("partition", "Number of the partition."),
        whole("records", "Number of records of the last plan, which the partition now has."),
        whole("written", "Number of them that this run wrote."),
        whole("base_offset", "Offset of the first of them."),
        whole("end_offset", "Offset after the last of them."),
        whole("looks", "How often the writers looked up the end offset."),
    ),
)
