"""The commands `gateway job ...`. The commands load without Spark; running a job requires it."""

from __future__ import annotations

from typing import Final

from ledger.command_line.program import CommandGroup, Deferred

job: Final = CommandGroup(
    "job",
    "Archive, replay and audit topics with Spark.",
    {
        "archive": Deferred(
            "gateway.pipelines.archive_command",
            "archive",
            "Copy topics to Parquet files or to an Iceberg table.",
        ),
        "replay": Deferred(
            "gateway.pipelines.replay_command",
            "replay",
            "Write archived records to a topic, each exactly once.",
        ),
        "audit": Deferred(
            "gateway.pipelines.audit_command",
            "audit",
            "Compare two of: a topic, its segments, an archive; or an archive with its own log.",
        ),
        "packages": Deferred(
            "gateway.pipelines.packages_command",
            "packages",
            "Print the Maven packages that the jobs need, for `spark-submit --packages`.",
        ),
    },
)
