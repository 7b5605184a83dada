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

Every metric of gateways, bookies and auditors, with its type, unit, labels and meaning. This page
is written from the code: `python -m tests.metrics_reference`.
[OPERATING.md](OPERATING.md#metrics) says how to scrape a cluster, and [runbook.md](runbook.md) what
the alerts mean. `compose/grafana/` has dashboards, and `compose/prometheus/` a configuration with
rules.

A histogram has samples `NAME_bucket`, `NAME_sum` and `NAME_count`. Those of seconds have 14 buckets
from 0.5 ms to 30 s. Counters begin with 0 at each start of their process.

Each gateway reports its own share, so that sums over all gateways are right: the partitions that it
leads, the groups that it coordinates, its requests. `kafka_brokers`, `kafka_broker_info`,
`gateway_bookies` and `gateway_ready` are what each of them sees.
"""
_TAIL = """
## Stages of slow requests

`gateway slow`, the page `/slow` and `/api/v1/slow` show where the time of the slowest requests
went. The stages do not overlap. One that is not known is null, or a dash, and never 0: the next
stage has its time.

- **queue**: behind earlier requests of its connection. Known of requests that are handled one after
  another.
- **decode**: to decode it. Known of a Produce or Fetch from 64 KiB on, and of all others.
- **append**: of a Produce, to check its batches and put them into the queue of the writer.
- **journal**: of a Produce, from there until the first bookie had synced its batches.
- **quorum**: of a Produce, from there until enough bookies had synced them.
- **write**: until its reply was handed to the socket.

A gateway remembers when bookies acknowledged entries: of each ledger the first 8, then one entry in
2 ms, and each 64th. An entry of the same ledger that was sent with the batches, or up to 5 ms
later, and that was confirmed together with them, gives their stage journal. Its bookies may be in
the process (`gateway dev`) or elsewhere. The stage is unknown if no such entry was remembered, as
may be while many entries are written at once. It is also unknown if more than 5 ms went by between
the last acknowledgement and the reply.
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
    return "".join([*parts, _TAIL])


if __name__ == "__main__":
    DOCUMENT.write_text(document())
