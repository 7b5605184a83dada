"""What the commands `gateway topic config ...` and `gateway cluster config ...` print."""

from __future__ import annotations

from typing import Final

from gateway.core.config_effect import show_ms
from ledger.command_line.output import show_bytes
from ledger.command_line.shape import Shape, Tone, rows, text, truth, whole


def _show_age(age_s: int) -> str:
    return show_ms(1000 * age_s)


_KEY: Final = text("key", "Name of the setting.")
_VALUE: Final = text("value", "Its value; null if it has none or is sensitive.", nullable=True)
_ORIGIN: Final = text(
    "origin",
    "Where the value is from: topic, broker, cluster (a default for all brokers), start (as the "
    "broker was started), default or unknown.",
)
_HAS_EFFECT: Final = truth(
    "has_effect",
    "Whether the server acts on it; null at servers of another kind, such as Apache Kafka.",
    nullable=True,
)
_MEANING: Final = text("meaning", "The server's documentation.", nullable=True, wide=True)
_FACTS: Final = (
    text("type", "Type of the value.", wide=True),
    truth("read_only", "Whether only a restart changes it.", wide=True),
    truth("sensitive", "Whether the value is not shown.", wide=True),
    _HAS_EFFECT,
    _MEANING,
    rows("values", "All values, the effective one first.", _KEY, _VALUE, _ORIGIN, json_only=True),
)
SHOWN: Final = Shape((_KEY, _VALUE, _ORIGIN, *_FACTS))
CHANGED: Final = Shape(
    (
        _KEY,
        text("before", "The value before; null if it is unknown.", nullable=True),
        text("before_origin", "Where it was from; null if unknown.", nullable=True, wide=True),
        text("after", "The value now; null if it is unknown.", nullable=True),
        _ORIGIN,
    )
)
EXPLAINED: Final = Shape(
    fields=(
        text("topic", "Name of the topic."),
        _KEY,
        _VALUE,
        _ORIGIN,
        *_FACTS,
        rows(
            "effect",
            "What it does now.",
            whole("partition", "The partition; null: the whole topic.", nullable=True),
            text("text", "A sentence."),
        ),
    ),
    rows="segments",
    columns=(
        whole("partition", "Number of the partition."),
        whole("segment", "Number of the segment."),
        whole("ledger", "Its ledger."),
        whole("first_offset", "Its first offset."),
        whole("end_offset", "The offset behind it; null if unknown.", nullable=True),
        whole(
            "size_bytes",
            "Bytes of one copy; null if unknown.",
            nullable=True,
            heading="SIZE",
            show=show_bytes,
        ),
        whole(
            "age_s",
            "Seconds since its completion, or since its begin while it is in progress.",
            nullable=True,
            heading="AGE",
            show=_show_age,
        ),
        text(
            "fate",
            "What retention does to it.",
            tones={"stays": Tone.good},
        ),
    ),
)
EXPLAINED_AT_BROKERS: Final = Shape(
    fields=(_KEY, _VALUE, _ORIGIN, *_FACTS),
    rows="brokers",
    columns=(whole("node", "Node id of the broker."), _VALUE, _ORIGIN),
)
