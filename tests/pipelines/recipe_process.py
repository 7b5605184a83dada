"""Programs of docs/spark.md in one process, one after the other. It may stand still at a step.

`python -m tests.pipelines.recipe_process FILE`: FILE is JSON with the fields of `Order`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Order(NamedTuple):
    """The programs by name, and where their results go.

    `stop` is empty, or has a `step` and a `batch`. At this step of the batch the process creates
    the file `stopped` and then stands still. `merge` and `append` are the first ones in the
    function of foreachBatch; `commit` is after the function, before the checkpoint is written.
    """

    programs: dict[str, str]
    stop: dict[str, Any]
    stopped: str
    results: str


class Stop:
    """Stands still at a step of a batch. It calls what it wraps, and changes nothing else."""

    def __init__(self, step: str, batch: int, stopped: Path) -> None:
        self._step, self._batch, self._stopped = step, batch, stopped
        self._running = -1

    def install(self) -> None:
        from pyspark.sql import DataFrameWriter, SparkSession
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        begin = DataStreamWriter.foreachBatch
        DataStreamWriter.foreachBatch = lambda writer, write: begin(writer, self._around(write))
        DataFrameWriter.save = self._after("append", DataFrameWriter.save)
        SparkSession.sql = self._after("merge", SparkSession.sql)

    def _around(self, write: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def wrapped(rows: Any, number: int) -> None:
            self._running = number
            write(rows, number)
            self._reach("commit")
            self._running = -1

        return wrapped

    def _after(self, step: str, call: Any) -> Any:
        def wrapped(*words: Any, **named: Any) -> Any:
            result = call(*words, **named)
            self._reach(step)
            return result

        return wrapped

    def _reach(self, step: str) -> None:
        if (step, self._running) == (self._step, self._batch):
            self._stopped.touch()
            threading.Event().wait()


def run(text: str) -> dict[str, Any]:
    """Run a program. Returns what it printed, its error, and how many schemas it holds."""
    names: dict[str, Any] = {"__name__": "__main__"}
    error = ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(compile(text, "docs/spark.md", "exec"), names)
        except Exception:
            error = traceback.format_exc()
    held = names["schema_of"].cache_info().currsize if "schema_of" in names else 0
    return {"printed": printed.getvalue(), "error": error, "schemas": held}


def main() -> None:
    order = Order(**json.loads(Path(sys.argv[1]).read_text()))
    if order.stop:
        Stop(order.stop["step"], order.stop["batch"], Path(order.stopped)).install()
    results = {name: run(text) for name, text in order.programs.items()}
    Path(order.results).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
