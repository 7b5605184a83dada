"""The house rule on tasks: sources in, `file:line what` out. `test_house.py` runs it.

A task that nobody supervises may end without a line in the log. Tasks therefore come from
`ledger/tasks.py`. The plain ones stand here by name, and with the place where their failure goes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.house import Source

SUPERVISOR = "ledger/tasks.py"
_STARTS = {"create_task", "ensure_future", "run_coroutine_threadsafe", "Task"}
# What starts work and returns a future: an `await` around it takes the failure.
_AWAITED = {"gather", "run_in_executor", "to_thread", "wait_for"}

PLAIN = {
    ("ledger/node/audit.py", "_run"): "awaited there; the result or the error is the exit code",
    ("ledger/node/serve.py", "_serve"): "awaited there; the result or the error is the exit code",
    ("gateway/admin/produce.py", "_run"): "waited for there; its error is the outcome",
    (
        "gateway/admin/record_writer.py",
        "RecordWriter.flush",
    ): "waited for there; `failure` has its error",
    ("gateway/http/guard.py", "Guard._answer"): "waited for there; its error is the answer",
    ("gateway/http/event_stream.py", "EventStream.__call__"): "cancelled and awaited there",
    ("gateway/process/run.py", "_ended"): "awaited there; waits for a signal and does not fail",
    (
        "gateway/process/run.py",
        "_preload",
    ): "an import ahead of time; the real one raises the error",
    ("gateway/process/embedded.py", "_recover_crashed"): "awaited there; partitions report",
    ("gateway/pipelines/replays/progress.py", "_Bar._run"): "awaited there, for a job",
    ("gateway/cluster/ownership_round.py", "OwnershipRounds.start"): "an Event.wait, awaited there",
    ("gateway/groups/group_scanner.py", "_each"): "a TaskGroup raises to its caller",
    ("gateway/topics/delayed_fetch.py", "DelayedFetch._start_reading"): "`_reading_ended` answers",
    (
        "gateway/topics/fetch_reader.py",
        "_open",
    ): "awaited there; every outcome is read or cancelled",
    ("ledger/adapters/grpc/grpc_link.py", "BookieConnection._serve"): "`_report` reports each end",
    ("ledger/bookie/server_streams.py", "ServerReadStream._start"): "`_respond` answers failures",
    (
        "ledger/bookie/server_calls.py",
        "ServerCallStream._start_asked",
    ): "`_answer` answers failures",
    ("ledger/client/reader.py", "LedgerReader._read_lacs"): "awaited there; each result is read",
    ("ledger/client/recover.py", "_length_up_to"): "awaited there",
    (
        "ledger/client/speculative_read.py",
        "SpeculativeRead._start_beside",
    ): "`_on_done` passes it on",
    ("ledger/client/writer.py", "LedgerWriter._carry_out"): "`_on_exchange_over` fails the writer",
    ("ledger/repair/election.py", "AuditorElection.run"): "`_wait` raises the leader's error",
    ("ledger/repair/election.py", "AuditorElection._wait"): "an Event.wait, awaited there",
    ("ledger/repair/replication_worker.py", "ReplicationWorker.repair_all"): "awaited there",
    ("ledger/streams/follower.py", "FollowedStream._follow"): "awaited there; `failed` tells it",
    ("ledger/streams/slice_read.py", "_SliceReading._start_read"): "awaited by `_read` or `close`",
    ("ledger/adapters/zookeeper/zookeeper_watches.py", "Watches._arm"): "`on_answered` reads both",
    (
        "ledger/adapters/zookeeper/zookeeper_watches.py",
        "Watches._remove_unwanted",
    ): "`_on_removed` goes on whatever the answer: a lost watch was removed too",
}


def unsupervised(source: Source) -> Iterator[str]:
    """Find tasks and futures of the product that neither the supervisor nor an `await` holds."""
    if not source.product or source.path == SUPERVISOR:
        return
    for where, call in _starts(source.tree):
        if (source.path, where) not in PLAIN:
            name = ast.unparse(call.func)
            yield source.at(call, f"{name} in {where}: use ledger.tasks, or await it in place")


def stale(sources: Iterable[Source]) -> Iterator[str]:
    """Find entries of `PLAIN` without a task."""
    found = {(source.path, where) for source in sources for where, _ in _starts(source.tree)}
    for path, where in PLAIN.keys() - found:
        yield f"tests/supervision.py:1 {path} starts no task in {where}: remove the entry"


def _starts(
    node: ast.AST, where: str = "", awaited: bool = False
) -> Iterator[tuple[str, ast.Call]]:
    """Yield each start of a task, with the dotted name of the function around it."""
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if name in _STARTS or (name in _AWAITED and not awaited):
            yield where, node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        where = f"{where}.{node.name}" if where else node.name
        awaited = False
    for child in ast.iter_child_nodes(node):
        yield from _starts(child, where, awaited or isinstance(node, ast.Await))


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
