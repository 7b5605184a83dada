"""The shapes of what the commands `gateway security ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, Tone, text, whole

ACLS: Final = Shape(
    (
        text("path", "Path of a node, from the root of ZooKeeper."),
        text(
            "state",
            "open: every client of ZooKeeper has rights; other: its ACL differs in another way; "
            "refused: this identity may not read or change it; changed: it was open or other, and "
            "was repaired.",
            tones={"open": Tone.bad, "refused": Tone.bad, "changed": Tone.good},
        ),
    ),
    fields=(
        whole("nodes", "Nodes below the root of the cluster, with that."),
        whole("open", "Nodes that were open to world:anyone."),
        whole("other", "Nodes whose ACL differed in another way."),
        whole("refused", "Nodes that this identity may not read or change."),
        whole("changed", "Nodes that were repaired; 0 with --check."),
        whole("left", "Nodes whose ACL is still not as it should be."),
    ),
    rows="paths",
)
"""The counts of all nodes, and at most 100 paths of each state."""
