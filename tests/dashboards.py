"""The Grafana dashboards, written from one short list, and the queries that they make.

`python -m tests.dashboards` rewrites compose/grafana/*.json. The datasource is a variable, so that
an imported dashboard needs no `__inputs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.dashboard_panels import (
    BOOKIES,
    OVERVIEW,
    SPARK,
    TOPICS,
    Dashboard,
    Panel,
    Query,
    Variable,
)
from tests.house import ROOT

PLACE = ROOT / "compose/grafana"
WIDTH, HEIGHT = 12, 8  # of a panel; a row has 24 columns


DASHBOARDS = (OVERVIEW, TOPICS, BOOKIES, SPARK)


def queries() -> Iterator[tuple[str, Query]]:
    """Each query with the name of its dashboard and panel."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.name}: {panel.title}", query


def as_asked(expr: str, interval: str = "1m") -> str:
    """The query as Grafana sends it, with all values of the variables chosen."""
    expr = expr.replace("$__rate_interval", interval)
    return re.sub(r'=~"\$\w+"', '=~".*"', expr)


def document(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"ledger-gateway-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["ledger-gateway"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": []},
        "panels": [_panel(at, panel) for at, panel in enumerate(dashboard.panels)],
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({variable.metric}, {variable.label})",
        "definition": f"label_values({variable.metric}, {variable.label})",
        "current": {"text": "All", "value": "$__all"},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
    }


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    place = {"x": WIDTH * (at % 2), "y": HEIGHT * (at // 2), "w": WIDTH, "h": HEIGHT}
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def text_of(dashboard: Dashboard) -> str:
    return json.dumps(document(dashboard), indent=1) + "\n"


def place_of(dashboard: Dashboard) -> Path:
    return PLACE / f"{dashboard.name}.json"


def main() -> None:
    for dashboard in DASHBOARDS:
        place_of(dashboard).write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
