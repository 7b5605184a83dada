"""What a run showed: a table for people, counts for the line of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.histories.checker import ALLOWED, Finding
from tests.histories.history import OK, Op

SHOWN_MAX = 5
LOST = ("lost", "lost-write", "unseen")
DOUBLED = ("duplicate",)


def counts(ops: Iterable[Op], findings: Sequence[Finding]) -> dict[str, int]:
    """Records acknowledged, lost and doubled, and findings that are not allowed."""
    acked = sum(len(op.value) for op in ops if op.kind == "send" and op.result == OK)
    return {
        "acked": acked,
        "lost": len({(f.key, f.what.split()[0]) for f in findings if f.anomaly in LOST}),
        "doubled": sum(finding.anomaly in DOUBLED for finding in findings),
        "anomalies": sum(finding.anomaly not in ALLOWED for finding in findings),
    }


def table(ops: Sequence[Op], findings: Sequence[Finding]) -> str:
    """Calls by client, kind and result; then findings by anomaly, the first few of each."""
    calls = Counter((op.client.split(", node")[0], op.kind, op.result) for op in ops)
    lines = [f"{'client':<24} {'call':<10} {'result':<6} {'count':>8}"]
    for (client, kind, result), count in sorted(calls.items()):
        lines.append(f"{client:<24} {kind:<10} {result:<6} {count:>8}")
    anomalies = Counter(finding.anomaly for finding in findings)
    if not anomalies:
        lines.append("no anomaly")
    for anomaly, count in sorted(anomalies.items()):
        lines.append(f"{anomaly}{' (allowed)' if anomaly in ALLOWED else ''}: {count}")
        shown = [finding for finding in findings if finding.anomaly == anomaly][:SHOWN_MAX]
        lines += [f"    {finding.key}: {finding.what}" for finding in shown]
    return "\n".join(lines)
