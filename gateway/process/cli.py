"""The commands of `gateway`; each is imported when it is named."""

from __future__ import annotations

from typing import Final

from ledger.command_line.program import CommandGroup, Deferred

program: Final = CommandGroup(
    "gateway",
    "A Kafka-compatible streaming gateway over a replicated ledger store.",
    {
        "dev": Deferred(
            "gateway.process.dev",
            "dev",
            "Run everything in one process: gateway, storage and metadata.",
        ),
        "serve": Deferred(
            "gateway.process.serve",
            "serve",
            "Run one gateway of a cluster, with ZooKeeper and bookies.",
        ),
        "topic": Deferred(
            "gateway.admin.produce_cli",
            "topic",
            "Create, change and delete topics; write and read records; list and accept losses; "
            "show compaction.",
        ),
        "group": Deferred(
            "gateway.admin.group_cli",
            "group",
            "List, describe, delete and move consumer groups.",
        ),
        "feature": Deferred(
            "gateway.admin.feature_cli",
            "feature",
            "Show, upgrade and downgrade the features of a cluster.",
        ),
        "transaction": Deferred(
            "gateway.admin.transaction_cli",
            "transaction",
            "List and describe transactions, and abort hanging ones.",
        ),
        "ledger": Deferred(
            "gateway.admin.ledger_loss_cli",
            "ledger",
            "List, show, verify, recover and explain ledgers.",
        ),
        "bookie": Deferred(
            "gateway.admin.bookie_cli",
            "bookie",
            "List bookies, show which are avoided, and remove one.",
        ),
        "job": Deferred(
            "gateway.pipelines.commands",
            "job",
            "Archive, replay and audit topics with Spark.",
        ),
    },
)
