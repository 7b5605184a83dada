"""DescribeCluster: the brokers, with and without operations; types of endpoints."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 60


@case(KEY)
def the_brokers(script: Script) -> None:
    for operations in (False, True):
        script.ask(include_cluster_authorized_operations=operations, endpoint_type=1)


@case(KEY, since=1)
def types_of_endpoints(script: Script) -> None:
    for kind in (2, 0, 3, -1):
        script.ask(include_cluster_authorized_operations=False, endpoint_type=kind)


@case(KEY, since=2)
def fenced_brokers(script: Script) -> None:
    script.ask(endpoint_type=1, include_fenced_brokers=True)
    script.ask(endpoint_type=2, include_fenced_brokers=True)
