"""The metadata store of one machine: a tree of versioned nodes in one SQLite file.

One thread writes. Changes that wait during a commit share the next commit and its sync (group
commit), and each change still gets its own result. Reads run inline on a second connection, where
SQLite's write-ahead log shows only changes that are committed, and therefore synced.

The header of the file has our application id and format version, so a foreign or newer file is
refused before SQLite opens it. A lock file beside it keeps out a second process.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ledger.adapters.sqlite.sqlite_tree import SCHEMA, SqliteTree
from ledger.errors import (
    CorruptFormat,
    DirectoryInUse,
    ForeignDirectory,
    MetadataUnavailable,
    NoNode,
)
from ledger.ports.metadata import ANY_VERSION, Node, Op, Unwatch

FORMAT_VERSION = 1
APPLICATION_ID = 0x4C454447  # "LEDG", stored in the application id of SQLite's header
JOBS_PER_COMMIT_MAX = 512  # bound that keeps one commit short

_MAGIC = b"SQLite format 3\0"
_FAILED_FOR_GOOD = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

T = TypeVar("T")


class _Job(NamedTuple):
    """The change of one caller; `change` runs on the writing thread."""

    change: Callable[[SqliteTree], Any]
    answer: asyncio.Future[Any]


class _Outcome(NamedTuple):
    job: _Job
    result: Any
    error: BaseException | None


class SqliteMetadata:
    """The `MetadataStore` of one machine, in the file `path`, which is created if missing.

    Its session is this process: the constructor deletes ephemeral nodes that an earlier process
    left. Raises DirectoryInUse, ForeignDirectory, CorruptFormat.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = _lock(path)
        try:
            self._writer, self._reader = _open(path)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise CorruptFormat(f"{path}: {error}") from error
        except BaseException:
            os.close(self._lock)
            raise
        self._read = SqliteTree(self._reader)
        # Changes for the writing thread, in call order; None ends it.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Callbacks by path. Only the loop uses this dictionary.
        self._watches: dict[str, list[Callable[[], None]]] = {}
        # Set once, by `close`; later calls fail.
        self._closed = False
        # The reason why changes are refused. Set once, after an I/O error; reads still work.
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._thread.start()

    # The following reads run inline.

    async def get(self, path: str) -> Node:
        node = self._reading(self._read.node, path)
        if node is None:
            raise NoNode(path)
        return node

    async def exists(self, path: str) -> bool:
        return self._reading(self._read.node, path) is not None

    async def children(self, path: str) -> list[str]:
        return self._reading(self._read.children, path)

    async def read_tree(self, path: str) -> dict[str, Node]:
        return self._reading(self._read.below, path)

    async def paths(self, path: str) -> list[str]:
        return self._reading(self._read.paths, path)

    async def sync(self, path: str) -> None:
        """Return at once: a change is visible to reads before its call returns."""

    def _reading(self, read: Callable[[str], T], path: str) -> T:
        if self._closed:
            raise MetadataUnavailable(f"{self._path} is closed")
        try:
            return read(path)
        except sqlite3.Error as error:
            raise MetadataUnavailable(f"{self._path}: {error}") from error

    # The following changes run on the writing thread.

    async def set(self, path: str, data: bytes, version: int) -> int:
        return await self._change(lambda tree: tree.set(path, data, version))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        return await self._change(
            lambda tree: tree.create(
                path, data, ephemeral=ephemeral, sequential=sequential, parents=parents
            )
        )

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._change(lambda tree: tree.delete(path, version))

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._change(lambda tree: tree.multi(ops))

    async def close(self) -> None:
        """Delete the ephemeral nodes, close the file, and let another process open it."""
        if self._closed:
            return
        if self._failure is None:
            try:
                await self._change(lambda tree: tree.delete_ephemeral())
            except MetadataUnavailable:
                pass  # the next process deletes the ephemeral nodes when it opens the file
        self._closed = True
        self._watches.clear()
        self._jobs.put(None)
        # At most one commit is still running, and the file must be closed when `close` returns.
        self._thread.join()
        self._reader.close()
        os.close(self._lock)

    def _change(self, change: Callable[[SqliteTree], T]) -> asyncio.Future[T]:
        if self._closed or self._failure is not None:
            raise MetadataUnavailable(self._failure or f"{self._path} is closed")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(change, answer))
        return answer

    # The following watches run on the loop.

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        watchers = self._watches.setdefault(path, [])
        armed = True

        def notify() -> None:
            if armed:
                on_changed()

        def unwatch() -> None:
            nonlocal armed
            if armed:
                armed = False
                watchers.remove(notify)
                if not watchers and self._watches.get(path) is watchers:
                    del self._watches[path]

        watchers.append(notify)
        return unwatch

    def watch_session(self, on_renewed: Callable[[], None]) -> Unwatch:
        """Return at once: the session is this process and is never renewed."""
        return lambda: None

    def _deliver(self, outcomes: list[_Outcome], touched: set[str]) -> None:
        for job, result, error in outcomes:
            if job.answer.done():
                continue  # the caller was cancelled; the change stands
            if error is None:
                job.answer.set_result(result)
            else:
                job.answer.set_exception(error)
        if not self._watches:
            return
        loop = asyncio.get_running_loop()
        for path in touched:
            for notify in self._watches.get(path, ()):
                loop.call_soon(notify)

    # The following methods run on the writing thread.

    def _run(self) -> None:
        running = True
        while running:
            jobs: list[_Job] = []
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == JOBS_PER_COMMIT_MAX or self._jobs.empty():
                    break
                job = self._jobs.get_nowait()  # this is the only thread that takes jobs
            running = job is not None
            if jobs:
                self._commit(jobs)
        self._writer.close()

    def _commit(self, jobs: list[_Job]) -> None:
        """Apply all of `jobs` in one transaction with one sync, and answer each job."""
        touched: set[str] = set()
        try:
            if self._failure is not None:
                raise MetadataUnavailable(self._failure)
            self._writer.execute("BEGIN IMMEDIATE")
            outcomes = [self._apply(job, touched) for job in jobs]
            self._writer.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the thread must go on to later changes
            outcomes = [_Outcome(job, None, self._failed(error)) for job in jobs]
            touched.clear()
        try:
            jobs[0].answer.get_loop().call_soon_threadsafe(self._deliver, outcomes, touched)
        except RuntimeError:
            pass  # the loop has ended, so no caller waits any more

    def _apply(self, job: _Job, touched: set[str]) -> _Outcome:
        """Apply one change inside the transaction; a failure undoes only this change.

        Raises sqlite3.Error.
        """
        tree = SqliteTree(self._writer)
        self._writer.execute("SAVEPOINT change")
        try:
            result = job.change(tree)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who raises it
            self._writer.execute("ROLLBACK TO change")
            self._writer.execute("RELEASE change")
            return _Outcome(job, None, error)
        self._writer.execute("RELEASE change")
        touched |= tree.touched
        return _Outcome(job, result, None)

    def _failed(self, error: Exception) -> MetadataUnavailable:
        """Return the error for callers. After an I/O error all changes are refused (fsyncgate)."""
        if isinstance(error, sqlite3.Error):
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
            if code in _FAILED_FOR_GOOD:
                self._failure = f"{self._path}: {error}; the store takes no change until restart"
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error as second:
            self._failure = f"{self._path}: {second}; the store takes no change until restart"
        return MetadataUnavailable(self._failure or f"{self._path}: {str(error) or repr(error)}")


def _lock(path: Path) -> int:
    """Lock the file `path` until the descriptor is closed or this process ends."""
    lock_path = path.with_name(path.name + ".lock")
    if not lock_path.exists():
        _check_header(path)  # a foreign file: nothing may be written beside it
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _check_header(path)
    except BlockingIOError:
        os.close(descriptor)
        raise DirectoryInUse(f"{path} is open in another process; stop it first") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_header(path: Path) -> None:
    """Check that the file is missing, or is ours in a format that this version reads.

    The header is read by hand, because SQLite may write as soon as it opens a file. Source: SQLite,
    "Database File Format", user version at byte 60 and application id at byte 68 of the header.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    if len(header) < 100 or header[:16] != _MAGIC:
        raise ForeignDirectory(f"{path} is not a metadata file")
    application_id = int.from_bytes(header[68:72], "big")
    if application_id != APPLICATION_ID:
        raise ForeignDirectory(f"{path} belongs to another program (id {application_id:#x})")
    version = int.from_bytes(header[60:64], "big")
    if version > FORMAT_VERSION:
        raise ForeignDirectory(
            f"{path} has format {version}; this version reads up to {FORMAT_VERSION}"
        )


def _open(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Open a writing and a reading connection, and delete the ephemeral nodes in the file."""
    if not path.exists():
        _make(path)
    writer = _connect(path)
    writer.execute("BEGIN IMMEDIATE")
    SqliteTree(writer).delete_ephemeral()
    writer.execute("COMMIT")  # needs no sync if nothing was deleted
    return writer, _connect(path)


def _make(path: Path) -> None:
    """Create the file completely and durably under another name, then rename it.

    It may have the keys of users, so only its owner may read it. SQLite gives the files that it
    makes beside it the same mode.
    """
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(aside, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.executescript(f"BEGIN;{SCHEMA}COMMIT;")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    _sync(aside)
    aside.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    connection.execute("PRAGMA synchronous = FULL")
    return connection
