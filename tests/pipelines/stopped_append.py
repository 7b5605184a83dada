"""One append in a process of its own, which stands still at a step until it is killed.

`python -m tests.pipelines.stopped_append FILE`: FILE is JSON with the fields of `Order`.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from gateway.pipelines.archives.iceberg import IcebergArchive
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.archives.port import Archive
from gateway.pipelines.shared.partitions import OffsetRange
from tests.peers.spark import new_session, reach
from tests.pipelines.archive_contract import commit, frame, rows


class Order(NamedTuple):
    """What to append where. At `step` the file `reached` is written, and the append stands still.

    `hadoop` and `spark` are settings that reach the place.
    """

    format: str
    place: str
    start: int
    end: int
    step: str
    reached: str
    work: str
    hadoop: dict[str, str]
    spark: dict[str, str]


def opened(order: Order, session: Any, at_step: Any) -> Archive:
    kind = ParquetArchive if order.format == "parquet" else IcebergArchive
    return kind(session, order.place, at_step=at_step)


def main() -> None:
    order = Order(**json.loads(Path(sys.argv[1]).read_text()))
    session = new_session("stopped", Path(order.work))
    reach(session, order.hadoop)
    for key, value in order.spark.items():
        session.conf.set(key, value)

    def at_step(step: str) -> None:
        if step == order.step:
            Path(order.reached).touch()
            threading.Event().wait()

    archive = opened(order, session, at_step)
    span = OffsetRange("a", 0, order.start, order.end)
    archive.append(frame(session, rows(span)), commit(span), archive.state())


if __name__ == "__main__":
    main()
