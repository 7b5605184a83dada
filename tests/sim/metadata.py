"""The metadata port in memory: one tree, many sessions, delays and lost replies by seed.

`MetadataTree` is what all sessions share and what survives their crashes. `SimMetadata` is one
session. With `MetadataFaults` a call may fail before it reached the tree, or after the tree
changed (the reply is lost): both are MetadataUnavailable to the caller.
"""

import asyncio
import copy
import random
from dataclasses import dataclass, field

from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoNode, NotEmpty
from ledger.world.metadata import ANY_VERSION, NODE_BYTES_MAX, Check, Create, Delete, Node, Set

RENEWAL_S = 0.5  # until a client hears that its session has expired, if it asks nothing


@dataclass(slots=True)
class _Record:
    data: bytes = b""
    version: int = 0
    session: int | None = None  # the owner of an ephemeral node
    next_sequence: int = 0


def _parent(path):
    return path.rpartition("/")[0] or "/"


def _checked(path):
    assert path.startswith("/") and "\0" not in path, path
    assert path == "/" or not {"", ".", ".."}.intersection(path[1:].split("/")), path
    return path


class MetadataTree:
    """Nodes by path. Every method is one atomic step. `on_set` sees each change of data."""

    def __init__(self):
        self.nodes = {"/": _Record()}
        self.watches = {}
        self.sessions = 0
        self.on_set = None  # called with (path, data, version) after a create or a set

    def get(self, path):
        record = self.nodes.get(_checked(path))
        if record is None:
            raise NoNode(path)
        return record

    def names(self, path):
        self.get(path)
        return sorted(p.rpartition("/")[2] for p in self.nodes if p != "/" and _parent(p) == path)

    def below(self, path):
        prefix = "/" if _checked(path) == "/" else path + "/"
        return {
            p: Node(r.data, r.version)
            for p, r in sorted(self.nodes.items())
            if p.startswith(prefix) and p != "/"
        }

    def check(self, path, version):
        record = self.get(path)
        if version not in (ANY_VERSION, record.version):
            raise BadVersion(f"{path} is at version {record.version}, not {version}")
        return record

    def create(self, path, data, session=None, sequential=False, parents=False):
        assert len(data) <= NODE_BYTES_MAX
        above = _parent(_checked(path))
        if above not in self.nodes:
            if not parents:
                raise NoNode(above)
            self.create(above, b"", parents=True)
        assert self.nodes[above].session is None, "an ephemeral node has no children"
        if sequential:
            path = f"{path}{self.nodes[above].next_sequence:010d}"
            self.nodes[above].next_sequence += 1
        if path in self.nodes:
            raise NodeExists(path)
        self.nodes[path] = _Record(data, 0, session)
        self._changed(path, above)
        self._seen(path)
        return path

    def set(self, path, data, version):
        assert len(data) <= NODE_BYTES_MAX
        record = self.check(path, version)
        record.data = data
        record.version += 1
        self._changed(path)
        self._seen(path)
        return record.version

    def delete(self, path, version=ANY_VERSION):
        self.check(path, version)
        if any(_parent(other) == path for other in self.nodes if other != "/"):
            raise NotEmpty(path)
        del self.nodes[path]
        self._changed(path, _parent(path))

    def multi(self, ops, session):
        before = copy.deepcopy(self.nodes)
        try:
            for op in ops:
                if isinstance(op, Create):
                    self.create(op.path, op.data, session if op.ephemeral else None)
                elif isinstance(op, Set):
                    self.set(op.path, op.data, op.version)
                elif isinstance(op, Delete):
                    self.delete(op.path, op.version)
                else:
                    assert isinstance(op, Check)
                    self.check(op.path, op.version)
        except BaseException:
            self.nodes = before
            raise

    def end_session(self, session):
        for path in [p for p, r in self.nodes.items() if r.session == session]:
            self.delete(path)

    def _seen(self, path):
        if self.on_set is not None:
            record = self.nodes[path]
            self.on_set(path, record.data, record.version)

    def _changed(self, *paths):
        for path in paths:
            for notify in list(self.watches.get(path, ())):
                asyncio.get_running_loop().call_soon(notify)


@dataclass
class MetadataFaults:
    """How one session's calls fare. Rates are probabilities per call."""

    draw: random.Random = field(default_factory=random.Random)
    latency_s: float = 0.002  # mean, each way
    unsent: float = 0.0
    reply_lost: float = 0.0


class SimMetadata:
    """One client on a tree (its own, fresh one by default): a session, after `expire` the next."""

    def __init__(self, tree=None, faults=None):
        self.tree = tree or MetadataTree()
        self.tree.sessions += 1
        self.session = self.tree.sessions
        self.faults = faults
        self.closed = False
        self.expired = False
        self.watchers = []  # this client's part of the tree's
        self.renewal_watchers = []

    def expire(self):
        """The store ends this session: its ephemeral nodes go, what is under way is lost.

        A new session serves, and watchers are told, after RENEWAL_S or one call that failed.
        """
        self.expired = True
        self.tree.end_session(self.session)
        asyncio.get_running_loop().call_later(RENEWAL_S, self._renew)

    def _renew(self):
        if not self.expired or self.closed:
            return
        self.expired = False
        self.tree.sessions += 1
        self.session = self.tree.sessions
        for notify in [*self.watchers, *self.renewal_watchers]:
            asyncio.get_running_loop().call_soon(notify)

    async def _call(self, step, *args):
        if self.closed:
            raise MetadataUnavailable("the session is closed")
        if self.expired:
            self._renew()
            raise MetadataUnavailable("the session has expired")
        faults, session = self.faults, self.session
        if faults is None:
            return step(*args)
        await asyncio.sleep(faults.draw.expovariate(1 / faults.latency_s))
        if self.expired or self.session != session:
            raise MetadataUnavailable("the session has expired")
        if faults.draw.random() < faults.unsent:
            raise MetadataUnavailable("the request was lost")
        try:
            return step(*args)
        finally:
            await asyncio.sleep(faults.draw.expovariate(1 / faults.latency_s))
            if faults.draw.random() < faults.reply_lost:
                raise MetadataUnavailable("the reply was lost")

    async def get(self, path):
        def step():
            record = self.tree.get(path)
            return Node(record.data, record.version)

        return await self._call(step)

    async def exists(self, path):
        return await self._call(lambda: _checked(path) in self.tree.nodes)

    async def set(self, path, data, version):
        return await self._call(self.tree.set, path, data, version)

    async def create(self, path, data=b"", *, ephemeral=False, sequential=False, parents=False):
        session = self.session if ephemeral else None
        return await self._call(self.tree.create, path, data, session, sequential, parents)

    async def delete(self, path, version=ANY_VERSION):
        await self._call(self.tree.delete, path, version)

    async def multi(self, ops):
        await self._call(self.tree.multi, ops, self.session)

    async def children(self, path):
        return await self._call(self.tree.names, path)

    async def read_tree(self, path):
        return await self._call(self.tree.below, path)

    async def paths(self, path):
        return sorted(await self._call(self.tree.below, path))

    async def sync(self, path):
        await self._call(lambda: None)

    def watch(self, path, on_changed):
        watchers = self.tree.watches.setdefault(path, [])
        armed = [True]

        def notify():
            if armed[0] and not self.closed:
                on_changed()

        def unwatch():
            armed[0] = False
            if notify in watchers:
                watchers.remove(notify)
                self.watchers.remove(notify)

        watchers.append(notify)
        self.watchers.append(notify)
        return unwatch

    def watch_session(self, on_renewed):
        def notify():
            if notify in self.renewal_watchers and not self.closed:
                on_renewed()

        def unwatch():
            if notify in self.renewal_watchers:
                self.renewal_watchers.remove(notify)

        self.renewal_watchers.append(notify)
        return unwatch

    async def close(self):
        if not self.closed:
            self.closed = True
            self.tree.end_session(self.session)
