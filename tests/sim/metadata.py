"""The metadata port in memory: one tree, many sessions, delays and lost replies by seed.

`MetadataTree` is what all sessions share and what survives their crashes. `SimMetadata` is one
session. With `MetadataFaults` a call may fail before it reached the tree, or after the tree
changed (the reply is lost): both are MetadataUnavailable to the caller. A session may follow the
tree some time behind, as one of a ZooKeeper follower: it never goes back, it has seen whatever its
own writes (refused ones too) had to see, and `sync` catches up. With `node_by_node` the walks of
the adapter of ZooKeeper read trees, one node after another, while others change them.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from kazoo.protocol import serialization as wire

from ledger.adapters.zookeeper.zookeeper_metadata import ZooKeeperMetadata
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoNode, NotEmpty
from ledger.ports.metadata import ANY_VERSION, NODE_BYTES_MAX, Check, Create, Delete, Node, Set

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
        self.on_delete = None  # called with the path
        self.log = None  # once somebody follows: (time, path, node or None) of every change

    def follow(self):
        """What a follower starts with: all nodes as they are, and how far the log has come."""
        if self.log is None:
            self.log = []
        nodes = {path: Node(one.data, one.version) for path, one in self.nodes.items()}
        return nodes, len(self.log)

    def _logged(self, path):
        if self.log is not None:
            record = self.nodes.get(path)
            node = None if record is None else Node(record.data, record.version)
            self.log.append((asyncio.get_running_loop().time(), path, node))

    def get(self, path):
        record = self.nodes.get(_checked(path))
        if record is None:
            raise NoNode(path)
        return record

    def names(self, path):
        self.get(path)
        return sorted(self._children(path))

    def below(self, path):
        prefix = "/" if _checked(path) == "/" else path + "/"
        return {
            p: Node(r.data, r.version)
            for p, r in sorted(item for item in self.nodes.items() if item[0].startswith(prefix))
            if p != "/"
        }

    def _children(self, path):
        """Yield the names of the children. Called often: a plain scan took most of large tests."""
        prefix = "/" if path == "/" else path + "/"
        start = len(prefix)
        for p in self.nodes:
            if p.startswith(prefix) and p.find("/", start) < 0 and p != "/":
                yield p[start:]

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
        self._logged(path)
        self._changed(path, above)
        self._seen(path)
        return path

    def set(self, path, data, version):
        assert len(data) <= NODE_BYTES_MAX
        record = replace(self.check(path, version), data=data)
        record.version += 1
        self.nodes[path] = record
        self._logged(path)
        self._changed(path)
        self._seen(path)
        return record.version

    def delete(self, path, version=ANY_VERSION):
        self.check(path, version)
        if any(self._children(path)):
            raise NotEmpty(path)
        del self.nodes[path]
        if self.on_delete is not None:
            self.on_delete(path)
        self._logged(path)
        self._changed(path, _parent(path))

    def multi(self, ops, session):
        # Enough to undo all: the records themselves are replaced, never changed.
        before, logged = dict(self.nodes), len(self.log or ())
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
            if self.log is not None:
                del self.log[logged:]
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
    lag_s: float = 0.0  # reads may be so old
    node_by_node: bool = False  # trees are read as ZooKeeper's are, with changes in between
    cut: bool = False  # nothing reaches the store
    timeout_s: float = 0.5  # until that is noticed


class SimMetadata:
    """One client on a tree (its own, fresh one by default): a session, after `expire` the next."""

    def __init__(self, tree=None, faults=None):
        self.tree = tree or MetadataTree()
        self.tree.sessions += 1
        self.session = self.tree.sessions
        self.faults = faults
        self.closed = False
        self.expired = False
        self.dead = False  # its process is: nobody hears of anything any more
        self.surprise = None  # (an exception, after the step or before it): raised once
        self.gate = None  # an event that whatever this client hears waits for
        self.on_set = lambda path, data, begins: None  # around each `set` of this client
        self._nodes, self._seen = self.tree.follow() if faults and faults.lag_s else (None, 0)
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
        await self._check_reached(session)
        self._raise_surprise(after=False)
        try:
            result = step(*args)
            return await result if asyncio.iscoroutine(result) else result
        finally:
            await asyncio.sleep(faults.draw.expovariate(1 / faults.latency_s))
            over = self.dead and asyncio.current_task().cancelling()  # the world ends
            if self.gate is not None and not over:
                await self.gate.wait()
            if self.dead and not over:
                await asyncio.Event().wait()
            if faults.cut or faults.draw.random() < faults.reply_lost:
                raise MetadataUnavailable("the reply was lost")
            self._raise_surprise(after=True)

    def _raise_surprise(self, *, after):
        if self.surprise is not None and self.surprise[1] == after:
            (error, _), self.surprise = self.surprise, None
            raise error

    async def _check_reached(self, session):
        """The request has reached the store."""
        faults = self.faults
        if self.dead:
            if asyncio.current_task().cancelling():  # the world ends: `finally` must not wait
                raise MetadataUnavailable("the process is dead")
            await asyncio.Event().wait()
        if faults.cut:
            await asyncio.sleep(faults.timeout_s)
            raise MetadataUnavailable("the store is out of reach")
        if self.expired or self.session != session:
            raise MetadataUnavailable("the session has expired")
        if faults.draw.random() < faults.unsent:
            raise MetadataUnavailable("the request was lost")

    async def _write(self, step, *args):
        """A change, or a refusal: either comes after all that happened before."""

        def write():
            try:
                return step(*args)
            finally:
                self._catch_up()

        return await self._call(write)

    def _catch_up(self, until_s=None):
        """What happened until then is seen."""
        if self._nodes is None:
            return
        log = self.tree.log
        while self._seen < len(log) and (until_s is None or log[self._seen][0] <= until_s):
            _, path, node = log[self._seen]
            self._seen += 1
            if node is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = node

    def _follower(self):
        """The tree as this session sees it now; None: as it is."""
        if self._nodes is None:
            return None
        lag_s = self.faults.draw.random() * self.faults.lag_s
        self._catch_up(asyncio.get_running_loop().time() - lag_s)
        return self._nodes

    async def get(self, path):
        def step():
            nodes = self._follower()
            if nodes is None:
                record = self.tree.get(path)
                return Node(record.data, record.version)
            if path not in nodes:
                raise NoNode(path)
            return nodes[path]

        return await self._call(step)

    async def exists(self, path):
        def step():
            nodes = self._follower()
            return _checked(path) in (self.tree.nodes if nodes is None else nodes)

        return await self._call(step)

    async def set(self, path, data, version):
        self.on_set(path, data, True)
        try:
            return await self._write(self.tree.set, path, data, version)
        finally:
            self.on_set(path, data, False)

    async def create(self, path, data=b"", *, ephemeral=False, sequential=False, parents=False):
        session = self.session if ephemeral else None
        return await self._write(self.tree.create, path, data, session, sequential, parents)

    async def delete(self, path, version=ANY_VERSION):
        await self._write(self.tree.delete, path, version)

    async def multi(self, ops):
        changes = [(op.path, op.data) for op in ops if isinstance(op, Set)]
        for path, data in changes:
            self.on_set(path, data, True)
        try:
            await self._write(self.tree.multi, ops, self.session)
        except GeneratorExit:  # of a dead process, whenever its memory is collected
            raise
        except BaseException:
            self._multi_over(changes)
            raise
        self._multi_over(changes)

    def _multi_over(self, changes):
        for path, data in changes:
            self.on_set(path, data, False)

    def _names(self, path):
        nodes = self._follower()
        if nodes is None:
            return self.tree.names(path)
        if path not in nodes:
            raise NoNode(path)
        return sorted(p.rpartition("/")[2] for p in nodes if p != "/" and _parent(p) == path)

    def _data(self, path):
        """As ZooKeeper answers a read of one node."""
        nodes = self._follower()
        node = self.tree.get(path) if nodes is None else nodes.get(path)
        if node is None:
            raise NoNode(path)
        known = self.tree.nodes if nodes is None else nodes
        children = sum(_parent(other) == path for other in known if other != "/")
        return node.data, SimpleNamespace(version=node.version, numChildren=children)

    async def _each(self, request, nodes):
        """What the walks of the adapter of ZooKeeper ask; the tree may change between two nodes."""
        read = self._names if request is wire.GetChildren else self._data
        session, found = self.session, []

        async def read_all():
            for node in nodes:
                if self.faults.draw.random() < 0.3:
                    await asyncio.sleep(self.faults.draw.expovariate(1 / self.faults.latency_s))
                    await self._check_reached(session)
                try:
                    found.append((node, read(node)))
                except NoNode:
                    continue

        await self._call(read_all)
        for each in found:
            yield each

    @property
    def _walks(self):
        return self.faults is not None and self.faults.node_by_node

    async def children(self, path):
        return await self._call(self._names, path)

    async def read_tree(self, path):
        if self._walks:
            return await ZooKeeperMetadata.read_tree(self, path)

        def step():
            nodes = self._follower()
            if nodes is None:
                return self.tree.below(path)
            prefix = "/" if _checked(path) == "/" else path + "/"
            return {p: nodes[p] for p in sorted(nodes) if p.startswith(prefix) and p != "/"}

        return await self._call(step)

    async def paths(self, path):
        if self._walks:
            return await ZooKeeperMetadata.paths(self, path)
        return sorted(await self.read_tree(path))

    async def sync(self, path):
        await self._call(self._catch_up)

    def watch(self, path, on_changed):
        watchers = self.tree.watches.setdefault(path, [])
        armed = [True]

        def tell():
            if armed[0] and not self.closed and not self.dead:
                on_changed()

        def notify():
            if self._nodes is None:
                tell()
            else:  # a follower hears of it as late as it sees it
                lag_s = self.faults.draw.random() * self.faults.lag_s
                asyncio.get_running_loop().call_later(lag_s, tell)

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
