"""One replay in a process of its own, which stands still at a step until it is killed.

`python -m tests.pipelines.stopped_replay FILE`: FILE is JSON with the fields of `Order`.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.replays.model import ReplayRequest
from gateway.pipelines.replays.plan_store import FilePlans
from gateway.pipelines.replays.replay_job import replay
from tests.peers.spark import new_session


class Order(NamedTuple):
    """What to replay. At the second `step` the file `reached` is written, and it stands still."""

    archive: str
    state: str
    bootstrap: str
    topic: str
    target: str
    offsets_at_once: int
    step: str
    reached: str
    work: str


def main() -> None:
    order = Order(**json.loads(Path(sys.argv[1]).read_text()))
    session = new_session("stopped", Path(order.work))
    seen = 0

    def at_step(step: str) -> None:
        nonlocal seen
        seen += step == order.step
        if seen == 2:
            Path(order.reached).touch()
            threading.Event().wait()

    archive, plans = ParquetArchive(session, order.archive), FilePlans(session, order.state)
    request = ReplayRequest(order.topic, order.target, transactional=True)
    at_once = order.offsets_at_once
    replay(
        session,
        archive,
        order.bootstrap,
        request,
        plans,
        offsets_at_once=at_once,
        at_step=at_step,
    )


if __name__ == "__main__":
    main()
