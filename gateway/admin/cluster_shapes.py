"""The shapes of what the commands `gateway cluster info` and `gateway cluster health` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.output import show_bytes
from ledger.command_line.shape import Shape, Tone, pairs, rows, text, truth, whole

_BOOKIE_COLUMNS: Final = (
    text("bookie", "Id of the bookie."),
    text("address", "Its address; null if it is away.", nullable=True),
    text("rack", "Its rack; null if it is away.", nullable=True),
    text(
        "status",
        "rw, ro or away; with `emptying` while it is decommissioned.",
        tones={"rw": Tone.good, "ro": Tone.warning, "away": Tone.bad},
    ),
    whole(
        "disk_bytes",
        "Bytes of its disk; null if it does not answer.",
        nullable=True,
        heading="DISK",
        show=show_bytes,
    ),
    whole(
        "free_bytes",
        "Free bytes of its disk; null if it does not answer.",
        nullable=True,
        heading="FREE",
        show=show_bytes,
    ),
)
BOOKIES: Final = Shape(_BOOKIE_COLUMNS)
INFO: Final = Shape(
    fields=(
        text("cluster_id", "Id of the cluster."),
        text("server", "`ledger gateway`, or `other` for a server such as Apache Kafka."),
        whole("controller", "Node id of the controller; null if unknown.", nullable=True),
        pairs("features", "Finalized level of each feature."),
        whole("topics", "Number of topics, Kafka's own included."),
        whole("partitions", "Number of partitions of all topics."),
        text("metadata", "Where the metadata of ledgers are; null if unknown.", nullable=True),
        rows(
            "bookies",
            "The bookies; null if the ledgers are not within reach.",
            *_BOOKIE_COLUMNS,
            nullable=True,
        ),
    ),
    rows="gateways",
    columns=(
        whole("node", "Node id of the gateway or broker."),
        text("address", "Its advertised address."),
        text("rack", "Its rack; null if it has none.", nullable=True),
        whole("leads", "Number of partitions that it leads."),
    ),
)
HEALTH: Final = Shape(
    fields=(truth("healthy", "Whether no check failed."),),
    rows="checks",
    columns=(
        text("check", "Name of the check."),
        text(
            "result",
            "ok, fail or unknown.",
            tones={"ok": Tone.good, "fail": Tone.bad, "unknown": Tone.warning},
        ),
        text("finding", "What was found; null if all is well.", nullable=True),
        text("fix", "What to do; null if nothing.", nullable=True, if_any=True),
    ),
)
