"""The commands `gateway cluster ...`; each is imported when it is named."""

from __future__ import annotations

from typing import Final

from ledger.command_line.program import CommandGroup, Deferred

_LOCAL: Final = "gateway.process.local_cluster.commands"

cluster: Final = CommandGroup(
    "cluster",
    "Show a cluster, its health and its settings; run one on this machine.",
    {
        "info": Deferred(
            "gateway.admin.cluster_cli",
            "info",
            "Show the id, the features, the gateways and the bookies of a cluster.",
        ),
        "health": Deferred(
            "gateway.admin.cluster_cli",
            "health",
            "Check a cluster: partitions, copies, bookies and disks.",
        ),
        "config": Deferred(
            "gateway.admin.cluster_config_cli",
            "config",
            "Show, set, unset and explain the settings of all brokers or of one.",
        ),
        "up": Deferred(
            _LOCAL,
            "up",
            "Start a cluster on this machine, or those of its processes that have ended.",
        ),
        "down": Deferred(_LOCAL, "down", "Stop the cluster of this machine; its data stay."),
        "status": Deferred(_LOCAL, "status", "Show the processes of the cluster of this machine."),
        "kill": Deferred(
            _LOCAL, "kill", "Kill processes of the cluster of this machine, as kill -9 does."
        ),
    },
)
