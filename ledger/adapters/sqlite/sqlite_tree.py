"""The node tree as SQL over one connection. The caller owns the threads.

The key of a row is the parent's path and the node's name, so the children of a node and whole
subtrees are ranges.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ledger.errors import BadVersion, NodeExists, NoNode, NotEmpty
from ledger.ports.metadata import (
    ANY_VERSION,
    NODE_BYTES_MAX,
    Check,
    Create,
    Delete,
    Node,
    Op,
    Set,
)

SCHEMA = """
CREATE TABLE nodes(
    parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL, next_sequence INTEGER NOT NULL, PRIMARY KEY(parent, name)
) WITHOUT ROWID;
CREATE INDEX nodes_ephemeral ON nodes(ephemeral) WHERE ephemeral = 1;
INSERT INTO nodes VALUES('', '', x'', 0, 0, 0);
"""

_SELECT = "SELECT data, version, ephemeral, next_sequence FROM nodes WHERE parent = ? AND name = ?"
_CHILDREN = "SELECT name FROM nodes WHERE parent = ? AND name <> '' ORDER BY name"
_BELOW = (
    "SELECT parent || '/' || name, data, version FROM nodes "
    "WHERE (parent = ? OR (parent > ? AND parent < ?)) AND name <> '' ORDER BY parent, name"
)
_PATHS = (
    "SELECT parent || '/' || name FROM nodes "
    "WHERE (parent = ? OR (parent > ? AND parent < ?)) AND name <> '' ORDER BY 1"
)
_SET = "UPDATE nodes SET data = ?, version = ? WHERE parent = ? AND name = ?"
_SEQUENCE = "UPDATE nodes SET next_sequence = ? WHERE parent = ? AND name = ?"


def split(path: str) -> tuple[str, str]:
    """Return the row key of a path: "/a/b" is ("/a", "b"), "/a" is ("", "a"), "/" is ("", "")."""
    assert path.startswith("/") and "\0" not in path, path
    assert path == "/" or not {"", ".", ".."}.intersection(path[1:].split("/")), path
    parent, _, name = path.rpartition("/")
    return parent, name


def _range_below(path: str) -> tuple[str, str, str]:
    """Return the parents of all nodes below `path`: `path`, and the range between the other two."""
    split(path)
    prefix = "" if path == "/" else path
    # "0" is the character after "/", so every path that begins with "prefix/" is in the range.
    return prefix, prefix + "/", prefix + "0"


class SqliteTree:
    """Reads and changes of the tree. The caller owns the transaction and undoes a failed call.

    `touched` collects the paths whose watches must fire.
    """

    __slots__ = ("_sql", "touched")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection.execute
        self.touched: set[str] = set()

    def node(self, path: str) -> Node | None:
        row = self._sql(_SELECT, split(path)).fetchone()
        return None if row is None else Node(row[0], row[1])

    def children(self, path: str) -> list[str]:
        if self.node(path) is None:
            raise NoNode(path)
        rows = self._sql(_CHILDREN, ("" if path == "/" else path,)).fetchall()
        return [row[0] for row in rows]

    def below(self, path: str) -> dict[str, Node]:
        rows = self._sql(_BELOW, _range_below(path)).fetchall()
        return {row[0]: Node(row[1], row[2]) for row in rows}

    def paths(self, path: str) -> list[str]:
        return [row[0] for row in self._sql(_PATHS, _range_below(path)).fetchall()]

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        assert len(data) <= NODE_BYTES_MAX, f"{path}: {len(data)} bytes"
        parent, name = split(path)
        above = self._sql(_SELECT, split(parent or "/")).fetchone()
        if above is None:
            if not parents:
                raise NoNode(parent)
            self.create(parent, parents=True)
            above = (b"", 0, 0, 0)
        assert not above[2], f"{parent} is ephemeral and has no children"
        if sequential:
            name = self._next_name(parent, name, above[3])
        elif self.node(path) is not None:
            raise NodeExists(path)
        self._sql("INSERT INTO nodes VALUES(?, ?, ?, 0, ?, 0)", (parent, name, data, ephemeral))
        created = f"{parent}/{name}"
        self.touched |= {created, parent or "/"}
        return created

    def _next_name(self, parent: str, stem: str, sequence: int) -> str:
        while self.node(f"{parent}/{stem}{sequence:010d}") is not None:  # a client chose this name
            sequence += 1
        self._sql(_SEQUENCE, (sequence + 1, *split(parent or "/")))
        return f"{stem}{sequence:010d}"

    def set(self, path: str, data: bytes, version: int) -> int:
        assert len(data) <= NODE_BYTES_MAX, f"{path}: {len(data)} bytes"
        version_new = self.check(path, version) + 1
        self._sql(_SET, (data, version_new, *split(path)))
        self.touched.add(path)
        return version_new

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        assert path != "/"
        self.check(path, version)
        if self._sql("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NotEmpty(path)
        parent, name = split(path)
        self._sql("DELETE FROM nodes WHERE parent = ? AND name = ?", (parent, name))
        self.touched |= {path, parent or "/"}

    def check(self, path: str, version: int) -> int:
        """Return the version of the node. Raises BadVersion unless it is `version`."""
        node = self.node(path)
        if node is None:
            raise NoNode(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{path} is at version {node.version}, not {version}")
        return node.version

    def multi(self, ops: Sequence[Op]) -> None:
        for op in ops:
            match op:
                case Create(path, data, ephemeral):
                    self.create(path, data, ephemeral=ephemeral)
                case Set(path, data, version):
                    self.set(path, data, version)
                case Delete(path, version):
                    self.delete(path, version)
                case Check(path, version):
                    self.check(path, version)

    def delete_ephemeral(self) -> None:
        rows = self._sql("SELECT parent || '/' || name FROM nodes WHERE ephemeral = 1").fetchall()
        for (path,) in rows:
            self.delete(path)
