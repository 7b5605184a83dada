"""The shapes of what the commands `gateway group ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, Tone, text, truth, whole

_STATES: Final = {
    "Stable": Tone.good,
    "Empty": Tone.warning,
    "PreparingRebalance": Tone.warning,
    "CompletingRebalance": Tone.warning,
    "Assigning": Tone.warning,
    "Reconciling": Tone.warning,
    "Dead": Tone.bad,
}
_GROUP: Final = text("group", "Id of the group.")
_TOPIC: Final = text("topic", "Name of the topic.")
_PARTITION: Final = whole("partition", "Number of the partition.")
_CURRENT: Final = whole("current_offset", "Committed offset; null if there is none.", nullable=True)
_MOVES: Final = (
    _GROUP,
    _TOPIC,
    _PARTITION,
    _CURRENT,
    whole(
        "new_offset",
        "Offset that the group moves to; null if its committed offset is deleted.",
        nullable=True,
    ),
    text(
        "remark",
        "Why the move differs from the request, or what an undo cannot restore; null if neither.",
        nullable=True,
        wide=True,
    ),
)

LISTED: Final = Shape(
    (
        _GROUP,
        text("state", "State of the group; null on older servers.", nullable=True, tones=_STATES),
        text("type", "Type of the group, such as classic; null on older servers.", nullable=True),
        text("protocol", "Protocol type; null if the group has none.", nullable=True),
    )
)
OFFSETS: Final = Shape(
    (
        _GROUP,
        _TOPIC,
        _PARTITION,
        _CURRENT,
        whole(
            "log_end_offset",
            "Offset of the next record; null if the leader did not answer.",
            nullable=True,
        ),
        whole(
            "lag",
            "Offsets from the committed one to the end of the log; null if one is unknown.",
            nullable=True,
        ),
        text(
            "consumer_id",
            "Id of the member that has the partition; null if none has it.",
            nullable=True,
        ),
        text("host", "Address of this member; null if there is none.", nullable=True),
        text("client_id", "Client id of this member; null if there is none.", nullable=True),
        text(
            "blocked",
            "Why readers wait for a record at or after the committed offset; null if none waits.",
            nullable=True,
            if_any=True,
        ),
    ),
    when="Without `--members` and `--state`:",
)
MEMBERS: Final = Shape(
    (
        _GROUP,
        text("consumer_id", "Id of the member."),
        text("group_instance_id", "Id of a static member; null if it has none.", nullable=True),
        text("host", "Address of the member."),
        text("client_id", "Client id of the member."),
        whole("partitions", "Number of assigned partitions.", heading="#PARTITIONS"),
        whole(
            "epoch",
            "Epoch of a member of the consumer protocol; null if it is classic.",
            nullable=True,
            if_any=True,
        ),
        whole(
            "target_partitions",
            "Number of partitions that such a member moves to; null if it is classic.",
            heading="#TARGET-PARTITIONS",
            nullable=True,
            if_any=True,
        ),
    ),
    when="With `--members`:",
)
STATE: Final = Shape(
    (
        _GROUP,
        text("coordinator", "Address and node id of the coordinator.", heading="COORDINATOR (ID)"),
        text(
            "assignment_strategy",
            "Assignor that the members chose; null if there is none.",
            nullable=True,
        ),
        text("state", "State of the group.", tones=_STATES),
        whole("members", "Number of members.", heading="#MEMBERS"),
        whole(
            "group_epoch",
            "Epoch of a group of the consumer protocol; null if it is classic.",
            nullable=True,
            if_any=True,
        ),
        whole(
            "assignment_epoch",
            "Epoch of the last target assignment of such a group; null if it is classic.",
            nullable=True,
            if_any=True,
        ),
    ),
    when="With `--state`:",
)
DELETED: Final = Shape(
    fields=(text("deleted", "Id of the group."),),
    rows="offsets",
    columns=_MOVES,
    when="Without `--dry-run`:",
)
WOULD_DELETE: Final = Shape(
    fields=(text("would_delete", "Id of the group."),),
    rows="offsets",
    columns=_MOVES,
    when="With `--dry-run`:",
)
MOVED: Final = Shape(
    fields=(
        _GROUP,
        truth("executed", "Whether the group was moved; else the offsets are only a plan."),
    ),
    rows="offsets",
    columns=_MOVES,
)
HISTORY: Final = Shape(
    (
        text("time", "Time of the commit, in ISO 8601 and UTC."),
        text(
            "topic",
            "Name of the topic, or its id after its deletion; null if the members changed.",
            nullable=True,
        ),
        whole("partition", "Number of the partition; null if the members changed.", nullable=True),
        whole(
            "offset",
            "Committed offset; null if it was removed or the members changed.",
            nullable=True,
        ),
        whole(
            "change",
            "Difference from the previous committed offset; null if there is none.",
            nullable=True,
        ),
        text("note", "What else happened, such as a seek; null for a plain commit.", nullable=True),
    )
)
