"""The shapes of what the commands `gateway bookie ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.output import show_bytes
from ledger.command_line.shape import Shape, Tone, rows, text, truth, whole

_ID: Final = text("bookie", "Id of the bookie.")
_GATEWAY: Final = (
    whole("gateway", "Node id of the gateway."),
    text("address", "Its host and port."),
)
_AVOIDED: Final = (
    _ID,
    text(
        "reason",
        "failing or slow.",
        tones={"failing": Tone.bad, "slow": Tone.warning},
    ),
    text("since", "Time from which on the gateway has avoided it."),
    text("until", "Time until which it is avoided."),
    text("why", "What the gateway saw, in words."),
)

LISTED: Final = Shape(
    (
        _ID,
        text("address", "Its host and port; null if it is not registered.", nullable=True),
        text("rack", "Its rack; null if it is not registered.", nullable=True),
        text(
            "status",
            "rw or ro, as the bookie answered or is registered, or away; with ,emptying while it "
            "is decommissioned.",
            tones={
                "ro": Tone.warning,
                "rw,emptying": Tone.warning,
                "ro,emptying": Tone.warning,
                "away,emptying": Tone.warning,
                "away": Tone.bad,
            },
        ),
        whole("ledgers", "Number of ledgers that name it."),
        whole(
            "disk_bytes",
            "Size of its disk; null if it did not answer.",
            nullable=True,
            heading="DISK",
            show=show_bytes,
        ),
        whole(
            "free_bytes",
            "Free bytes of its disk; null if it did not answer.",
            nullable=True,
            heading="FREE",
            show=show_bytes,
        ),
    )
)
STATUS: Final = Shape(
    (
        *_GATEWAY,
        text(
            "detection",
            "What the gateway does about slow bookies: enabled (avoids them), observe-only or "
            "disabled; unreachable if it did not answer, unknown if it does not report its list.",
        ),
        rows("bookies", "The bookies that it avoids.", *_AVOIDED),
    )
)
AVOIDED: Final = Shape((*_GATEWAY, *_AVOIDED), tables_only=True)
"""A bookie and a gateway that avoids it."""
DECOMMISSIONED: Final = Shape(
    fields=(
        _ID,
        whole("moved_ledgers", "Number of ledgers that moved off it."),
        truth("cookie_removed", "true: it is out of the cluster."),
    ),
    when="Without `--cancel`:",
)
KEPT: Final = Shape(fields=(text("kept", "Id of the bookie."),), when="With `--cancel`:")
