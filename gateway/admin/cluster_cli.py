"""The commands `gateway cluster info` and `gateway cluster health`."""

from __future__ import annotations

import click

from gateway.admin import cluster_shapes
from gateway.admin.requests import ask, bootstrap_option
from gateway.admin.topics import Row
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import Output, emit, fail, output_option
from ledger.command_line.program import Command


@click.command("info", cls=Command)
@bootstrap_option
@output_option(cluster_shapes.INFO)
def info(bootstrap: str, output: Output) -> None:
    """Show the id, the features, the gateways and the bookies of a cluster.

    Apache Kafka has no bookies, and shows none.
    """
    from gateway.admin.cluster import cluster_info

    found = ask(bootstrap, output, cluster_info)
    output.show(found, before=_text(found))
    if output.is_table and output.header and not output.chosen:
        emit("")
        if found["bookies"] is None:
            emit("Bookies: -")
        else:
            output.show(found["bookies"], shape=cluster_shapes.BOOKIES)


def _text(found: Row) -> str:
    features = " ".join(f"{name}={level}" for name, level in found["features"].items())
    controller = "-" if found["controller"] is None else found["controller"]
    return (
        f"Cluster: {found['cluster_id']}  Server: {found['server']}  Controller: {controller}\n"
        f"Features: {features or '-'}\n"
        f"Topics: {found['topics']}  Partitions: {found['partitions']}  "
        f"Metadata: {found['metadata'] or '-'}\n"
    )


@click.command("health", cls=Command)
@bootstrap_option
@output_option(cluster_shapes.HEALTH)
def health(bootstrap: str, output: Output) -> None:
    """Check a cluster: partitions, copies, bookies and disks.

    The exit code is 1 if a check fails; each failed one says what to do. A check is unknown where
    the server cannot say, such as the checks of ledgers at Apache Kafka.
    """
    from gateway.admin.cluster import cluster_facts
    from gateway.core.cluster_health import FAIL, judge

    checks = judge(ask(bootstrap, output, cluster_facts))
    failed = [each for each in checks if each.result == FAIL]
    output.show({"healthy": not failed, "checks": [each._asdict() for each in checks]})
    if failed:
        names = ", ".join(dict.fromkeys(each.check for each in failed))
        fail(EXIT_FAILED, f"the cluster is not healthy: {names}", "UNHEALTHY", output)
