"""The reference of all metrics, written from their declarations.

`python -m tests.metrics_reference` rewrites docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.metrics import process_samples, samples
from ledger.exposition import Declared
from ledger.node import node_metrics
from tests.house import ROOT

DOCUMENT = ROOT / "docs/metrics.md"
_UNITS = ("seconds", "bytes")
_HEAD = """\
# Metrics

This page is written from the code: `python -m tests.metrics_reference`.
[OPERATING.md](OPERATING.md#metrics) says how to scrape a cluster, and [runbook.md](runbook.md) what
the alerts mean. `compose/grafana/` has dashboards, and `compose/prometheus/` a configuration with
rules.

A histogram has samples `NAME_bucket`, `NAME_sum` and `NAME_count`. Those of seconds have 14 buckets
from 0.5 ms to 30 s. Counters begin with 0 at each start of their process.

Each gateway reports its own share, so that sums over all gateways are right: the partitions that it
leads, the groups that it coordinates, its requests. `kafka_brokers`, `kafka_broker_info`,
`gateway_bookies` and `gateway_ready` are what each of them sees.
"""


def unit_of(name: str) -> str:
    """The unit at the end of a name, or a dash."""
    last = name.removesuffix("_total").rpartition("_")[2]
    return last if last in _UNITS else "-"


def tables() -> Iterator[tuple[str, Mapping[str, Declared]]]:
    """The families by the kind of their process."""
    shared = {name: Declared(*each) for name, each in samples.FAMILIES.items()}
    yield "Gateways: the cluster, topics and groups", shared | samples.HISTOGRAMS
    yield "Gateways: their own work", process_samples.DECLARED
    bookie = {name: each for name, each in node_metrics.DECLARED.items() if "audit" not in name}
    yield "Bookies", bookie
    yield (
        "Auditors, and bookies with `--audit`",
        {name: each for name, each in node_metrics.DECLARED.items() if name not in bookie},
    )
    yield "Every process", node_metrics.PROCESS


def declared() -> dict[str, Declared]:
    """All families."""
    return {name: each for _, table in tables() for name, each in table.items()}


def document() -> str:
    parts = [_HEAD]
    for title, families in tables():
        parts.append(f"\n## {title}\n\n| metric | type | unit | labels | meaning |\n")
        parts.append("|---|---|---|---|---|\n")
        for name, each in families.items():
            labels = ", ".join(f"`{label}`" for label in each.labels) or "-"
            parts.append(
                f"| `{name}` | {each.kind.value} | {unit_of(name)} | {labels} | {each.text} |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
