"""The shapes of what the commands `gateway transaction ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Kind, Shape, Tone, text, whole

_ID: Final = text("transactional_id", "Transactional id of the producer.")
_PRODUCER_ID: Final = whole("producer_id", "Id of the producer.")
_PRODUCER_EPOCH: Final = whole("producer_epoch", "Epoch of the producer.")
_STATE: Final = text(
    "state",
    "State of the transaction.",
    tones={
        "CompleteCommit": Tone.good,
        "CompleteAbort": Tone.warning,
        "PrepareAbort": Tone.warning,
        "PrepareEpochFence": Tone.warning,
        "Dead": Tone.bad,
    },
)
_HANGING: Final = (
    text("topic", "Name of the topic."),
    whole("partition", "Number of the partition."),
    _PRODUCER_ID,
    _PRODUCER_EPOCH,
    whole("coordinator_epoch", "Epoch of the coordinator; -1 before the first marker."),
    whole("start_offset", "First offset of the transaction."),
    whole("last_timestamp_ms", "Time of its last record, in milliseconds since 1970."),
)

LISTED: Final = Shape((_ID, _PRODUCER_ID, _STATE))
DESCRIBED: Final = Shape(
    fields=(
        _ID,
        _PRODUCER_ID,
        _PRODUCER_EPOCH,
        _STATE,
        whole("timeout_ms", "Time after which an open transaction is aborted, in milliseconds."),
        whole(
            "started_ms",
            "Time when it began, in milliseconds since 1970; null if none is open.",
            nullable=True,
        ),
        Column(
            "partitions",
            Kind.texts,
            "Its partitions, such as orders-0; of a prepared one, those without a marker.",
        ),
    )
)
FOUND_HANGING: Final = Shape(_HANGING)
ABORTED: Final = Shape(fields=_HANGING)
