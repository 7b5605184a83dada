"""The commands of `gateway`; each is imported when it is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from ledger.command_line.program import CommandGroup, Deferred, completions, habits


def _topics(ctx: click.Context, incomplete: str) -> Sequence[str]:
    from gateway.admin.completion import topics

    return topics(ctx, incomplete)


def _groups(ctx: click.Context, incomplete: str) -> Sequence[str]:
    from gateway.admin.completion import groups

    return groups(ctx, incomplete)


def _profiles(ctx: click.Context, incomplete: str) -> Sequence[str]:
    from gateway.admin.completion import profiles

    return profiles(ctx, incomplete)


completions.update(TOPIC=_topics, GROUP=_groups, PROFILE=_profiles)
# Options of Kafka's console programs, kcat and rpk.
habits.update(
    {
        "--from-beginning": "--from start",
        "--topic": "an argument, such as `gateway topic describe orders`",
        "--max-messages": "-n",
        "--num": "-n",
        "--offset": "--from",
        "--brokers": "--bootstrap",
        "--bootstrap-server": "--bootstrap",
        "--bootstrap-servers": "--bootstrap",
        "--broker-list": "--bootstrap",
        "--all-groups": "`gateway group list`",
        "--reset-offsets": "`gateway group seek`",
    }
)

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
        "config": Deferred(
            "gateway.process.config_cli",
            "config",
            "Check a file of settings, and show the settings of a server.",
        ),
        "profile": Deferred(
            "gateway.admin.profile_cli",
            "profile",
            "Create, choose, show and edit profiles: where commands connect.",
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
        "cluster": Deferred(
            "gateway.process.cluster_cli",
            "cluster",
            "Show a cluster, its health and its settings; run one on this machine.",
        ),
        "feature": Deferred(
            "gateway.admin.feature_cli",
            "feature",
            "Show, upgrade and downgrade the features of a cluster.",
        ),
        "acl": Deferred(
            "gateway.admin.acl_cli",
            "acl",
            "List, add, remove and explain ACLs: who may do what.",
        ),
        "user": Deferred(
            "gateway.admin.user_cli",
            "user",
            "Add, list and delete users, and write the first one of a cluster.",
        ),
        "security": Deferred(
            "gateway.admin.security_cli",
            "security",
            "Check and repair the ACLs of the nodes in ZooKeeper.",
        ),
        "transaction": Deferred(
            "gateway.admin.transaction_cli",
            "transaction",
            "List and describe transactions, and abort hanging ones.",
        ),
        "events": Deferred(
            "gateway.admin.events_cli",
            "events",
            "Show what happened in the gateways: rolls, ensemble changes, fences, takeovers, "
            "losses.",
        ),
        "top": Deferred(
            "gateway.admin.top_cli",
            "top",
            "Show topics by rate, groups by lag, and bookies, again and again until Ctrl-C.",
        ),
        "slow": Deferred(
            "gateway.admin.slow_cli",
            "slow",
            "Show the slowest requests of the last hour, and where their time went.",
        ),
        "health": Deferred(
            "gateway.admin.health_cli",
            "health",
            "Exit with 0 if the gateway at --bootstrap takes requests, and with 1 and the reasons "
            "if not.",
        ),
        "explain": Deferred(
            "gateway.admin.explain_cli",
            "explain",
            "Explain one record: its batch, its place, its copies, and when it goes.",
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
        "completion": Deferred(
            "gateway.admin.completion_cli",
            "completion",
            "Print a script by which a shell completes commands, flags, topics and groups.",
        ),
        "doctor": Deferred(
            "gateway.admin.doctor_cli",
            "doctor",
            "Check servers, disks and clocks, and print a fix for what is wrong.",
        ),
        "http-password": Deferred(
            "gateway.http.password_command",
            "http_password",
            "Print the line of a name for the file of --http-password-file.",
        ),
        "job": Deferred(
            "gateway.pipelines.commands",
            "job",
            "Archive, replay and audit topics with Spark.",
        ),
    },
)
