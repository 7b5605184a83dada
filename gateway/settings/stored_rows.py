"""A small table of the metadata store: one sealed node for each row, followed by all gateways.

    <root>/<first half of the SHA-256 of the key>   `1 <crc32c> <JSON>`: version, life, key, value

A key may hold any text, and never becomes a path. A row that is deleted and created again has
another life, so that an old reading of its node is not mistaken for the new one. Its node has
version 0 again, so versions of nodes alone do not show that a row was created again. Therefore each
deletion also sets `<root>`, and a row is changed or deleted only if `<root>` has the version that
was read before the row.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast
from uuid import uuid4

from gateway.log import logger
from gateway.topics.catalog_watch import NodeWatch
from ledger.errors import BadVersion, CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import (
    NODE_BYTES_MAX,
    Check,
    Delete,
    MetadataStore,
    Node,
    Set,
)
from ledger.sealed import seal, unseal

ROWS_MAX = 10_000
TABLE_BYTES_MAX = 16 * 1024 * 1024  # of all rows, as they are stored
VERSION = 1
_STEP_ROWS = 50  # decoded between two pauses
_PATH_BYTES = 200  # more than any path of a row takes

Value = Mapping[str, Any]
"""The JSON object of a row."""


class TableFull(Exception):
    """The error that a table has its maximum of rows or bytes, or a row is too large."""


class _Row(NamedTuple):
    key: str
    value: Value
    life: str
    version: int  # of the node
    size: int  # bytes of the node


class StoredRows:
    """The rows below one node, in memory and in the store. A change is durable when it returns."""

    def __init__(self, store: MetadataStore, root: str, what: str) -> None:
        """Create an empty table. `what` names its rows in logs, such as "client quotas"."""
        self._store = store
        self._root = root
        self._what = what
        # The rows that could be read, by the name of their node. Changed by `_put` and `_drop`.
        self._rows: dict[str, _Row] = {}
        # The sum of the sizes of `_rows`. Changed with it.
        self._bytes = 0
        # The names of nodes that cannot be decoded, until they can be or are deleted. Each is
        # logged once.
        self._unreadable: set[str] = set()
        # The lives of rows that this gateway deleted, until the watch's present or next round is
        # over. A reading that began before a deletion shows such a life.
        self._ended: set[str] = set()
        # The names of nodes that this gateway created, until the watch's present or next round is
        # over. A reading that began before a creation shows no such node.
        self._created: set[str] = set()
        # Called after rows changed on any gateway.
        self.on_changed: list[Callable[[], None]] = []
        self._watch = NodeWatch(store, root, self, what)
        # Held while a change is repeated, so that changes on this gateway do not hinder each other.
        self._repeating = asyncio.Lock()

    async def load(self) -> None:
        """Read every row, and follow the changes of other gateways from now on."""
        try:
            await self._store.create(self._root, parents=True)
        except NodeExists:
            pass
        await self._watch.start()

    async def close(self) -> None:
        """Stop following the changes of other gateways."""
        await self._watch.stop()

    def get(self, key: str) -> Value | None:
        row = self._rows.get(_name_of(key))
        return None if row is None else row.value

    @property
    def unreadable(self) -> bool:
        """True while a row is damaged, or was written by a later release."""
        return bool(self._unreadable)

    async def read_now(self) -> dict[str, Value]:
        """Return all readable rows as the store has them now. Raises LedgerError.

        Other tasks run meanwhile.
        """
        await self._store.sync(self._root)
        found: dict[str, Value] = {}
        nodes = await self._store.read_tree(self._root)
        for number, (path, node) in enumerate(nodes.items(), 1):
            with suppress(CorruptFormat):
                row = _decode(path, node)
                found[row.key] = row.value
            if number % _STEP_ROWS == 0:
                await asyncio.sleep(0)
        return found

    def items(self) -> Iterator[tuple[str, Value]]:
        """Return the keys and values as they are now, even if rows change meanwhile."""
        return iter([(row.key, row.value) for row in self._rows.values()])

    async def change(self, key: str, changed: Callable[[Value | None], Value | None]) -> None:
        """Replace the row's value by `changed(value)`. None stands for a row that does not exist.

        If another gateway changes the row at the same time, `changed` runs again. Raises TableFull,
        LedgerError, and any exception of `changed`.
        """
        if await self._try(key, changed, synced=False):
            return
        async with self._repeating:
            done = False
            while not done:
                await self._store.sync(self._root)
                done = await self._try(key, changed, synced=True)

    async def _try(
        self, key: str, changed: Callable[[Value | None], Value | None], *, synced: bool
    ) -> bool:
        """Change the row once. Returns False if the change must be repeated after a sync.

        That is so if another gateway changed the row after it was read, or if an unsynced reading,
        which may be old, shows the value that is wanted.
        """
        name = _name_of(key)
        path = f"{self._root}/{name}"
        deletions = (await self._store.get(self._root)).version
        row = await self._read(name, path)
        value = changed(None if row is None else row.value)
        if value == (None if row is None else row.value):
            return synced
        try:
            if row is None:
                assert value is not None
                await self._create(name, path, _Row(key, value, uuid4().hex, 0, 0))
            elif value is None:
                await self._store.multi(
                    [Set(self._root, b"", deletions), Delete(path, row.version)]
                )
                self._ended.add(row.life)
                self._created.discard(name)
                self.on_gone(name)
            else:
                data = self._encode(row._replace(value=value))
                self._check_bytes(len(data) - row.size)
                await self._store.multi(
                    [Check(self._root, deletions), Set(path, data, row.version)]
                )
                after = row._replace(value=value, version=row.version + 1, size=len(data))
                self._put(name, after)
        except (BadVersion, NodeExists, NoNode):
            return False
        self._notify()
        return True

    async def _create(self, name: str, path: str, row: _Row) -> None:
        if len(self._rows) >= ROWS_MAX:
            raise TableFull(f"The limit of {ROWS_MAX} {self._what} is reached.")
        data = self._encode(row)
        self._check_bytes(len(data))
        await self._store.create(path, data)
        self._created.add(name)
        self._put(name, row._replace(size=len(data)))

    def _check_bytes(self, more: int) -> None:
        """Raise TableFull if the table would grow beyond its bytes. It may always shrink."""
        if more > 0 and self._bytes + more > TABLE_BYTES_MAX:
            raise TableFull(f"The limit of {TABLE_BYTES_MAX} bytes of {self._what} is reached.")

    async def _read(self, name: str, path: str) -> _Row | None:
        try:
            node = await self._store.get(path)
        except NoNode:
            self._drop(name)
            return None
        row = _decode(path, node)
        self._put(name, row)
        return row

    def _encode(self, row: _Row) -> bytes:
        document = {"version": VERSION, "life": row.life, "key": row.key, "value": dict(row.value)}
        data = seal(document)
        if len(data) + _PATH_BYTES > NODE_BYTES_MAX:
            raise TableFull(f"One of the {self._what} would take {len(data)} bytes.")
        return data

    def _put(self, name: str, row: _Row) -> None:
        if row.life in self._ended:
            return
        known = self._rows.get(name)
        if known is None or known.life != row.life or known.version <= row.version:
            self._rows[name] = row
            self._bytes += row.size - (0 if known is None else known.size)

    def _drop(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is not None:
            self._bytes -= row.size

    # -- the `NodeListener` of the watch --------------------------------------------------------

    def known_names(self) -> set[str]:
        return set(self._rows)

    def on_found(self, name: str, node: Node) -> None:
        path = f"{self._root}/{name}"
        try:
            row = _decode(path, node)
        except CorruptFormat as error:
            if name not in self._unreadable:
                logger().error(f"one of the {self._what} cannot be read", reason=str(error))
            self._unreadable.add(name)
            return
        self._unreadable.discard(name)
        self._put(name, row)

    def on_gone(self, name: str) -> None:
        if name in self._created:
            return  # if another gateway deleted it since, the watch reads it again
        self._unreadable.discard(name)
        self._drop(name)

    def on_round_over(self) -> None:
        self._ended.clear()
        self._created.clear()
        self._notify()

    def _notify(self) -> None:
        for on_changed in self.on_changed:
            on_changed()


def _name_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _decode(path: str, node: Node) -> _Row:
    """Decode a row. Raises CorruptFormat, also for a version of a later release."""
    document = unseal(node.data, path)
    if document.get("version") != VERSION:
        version = str(document.get("version"))[:16]
        raise CorruptFormat(f"{path}: has version {version}; this release reads {VERSION}")
    key, life, value = (document.get(field) for field in ("key", "life", "value"))
    if not isinstance(key, str) or not isinstance(life, str) or not isinstance(value, dict):
        raise CorruptFormat(f"{path}: is not a row")
    if _name_of(key) != path.rpartition("/")[2]:
        raise CorruptFormat(f"{path}: holds the row of another node")
    return _Row(key, cast("dict[str, Any]", value), life, node.version, len(node.data))
