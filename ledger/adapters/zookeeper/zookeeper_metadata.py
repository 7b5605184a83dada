# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The metadata store of a cluster: Apache ZooKeeper, through kazoo.

Requests of one store are sent and answered in the order of the calls, many in flight at once. After
a lost connection the requests in flight fail with MetadataUnavailable, because their outcome is
unknown, and the store reconnects. Requests made meanwhile wait, at most for the length of a
session. After the loss of a session a new one is created, and `watch_session` reports it.

A server closes the connection of a request that is too large for it. Such a request raises
EntryTooLarge and is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol import serialization as wire

from ledger.adapters.zookeeper.close_session import Session
from ledger.adapters.zookeeper.zookeeper_access import OPEN, ZooKeeperAccess
from ledger.adapters.zookeeper.zookeeper_acls import NodeAcls
from ledger.adapters.zookeeper.zookeeper_bridge import ZooKeeperBridge
from ledger.adapters.zookeeper.zookeeper_reads import ReadBatches
from ledger.adapters.zookeeper.zookeeper_requests import (
    FIELDS_BYTES_MAX,
    HEADER_BYTES,
    MULTI_OP_BYTES,
    REQUEST_BYTES_MAX,
    RemoveWatches,
    SetWatches,
    WatchChildren,
    WatchNode,
)
from ledger.adapters.zookeeper.zookeeper_watches import Watches
from ledger.errors import (
    AccessDenied,
    BadVersion,
    EntryTooLarge,
    MetadataError,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NotEmpty,
)
from ledger.ports.metadata import (
    ANY_VERSION,
    NODE_BYTES_MAX,
    Check,
    Create,
    Delete,
    Node,
    Op,
    Set,
    Unwatch,
)
from ledger.tasks import reported

_WALK_REQUESTS = 128  # requests that one walk may have in flight; leaves room for other requests

_PATH_SHOWN = 200  # characters of a path in the text of an error
_EPHEMERAL = 1
_SEQUENTIAL = 2
# ZooKeeper's errors for the operations of a failed multi that were undone or not tried
_SKIPPED = (RolledBackError, RuntimeInconsistency)

_ERRORS: Final[tuple[tuple[type[KazooException], type[MetadataError]], ...]] = (
    (NoNodeError, NoNode),
    (NodeExistsError, NodeExists),
    (NotEmptyError, NotEmpty),
    (BadVersionError, BadVersion),
)


async def connect_zookeeper(
    servers: str,
    *,
    session_ms: int = 10_000,
    chroot: str = "",
    connect_s: float = 10.0,
    make_root: bool = True,
    prove_session: bool = False,
    on_session: Callable[[Session], None] | None = None,
    access: ZooKeeperAccess = OPEN,
) -> ZooKeeperMetadata:
    """Return a store on an established session. Its root is `chroot`, created if missing.

    `servers` is `host:port,host:port`. It may end with the root (`host:port/root`) if `chroot` is
    not given. Without `make_root` nothing is created, and below a missing root every path is
    NoNode. `prove_session` writes regularly to ZooKeeper, so that `confirmed_s` advances and a
    lease may rest on it. `on_session` is called at each connection. `access` has the identity and
    the TLS of this process. Raises MetadataUnavailable after `connect_s`, and OpenToAnyone if a
    node is open and must not be.
    """
    hosts, _, below = servers.partition("/")
    root = chroot or f"/{below}"
    root = "" if root == "/" else root
    store = ZooKeeperMetadata(
        hosts, session_ms, root, prove_session=prove_session, on_session=on_session, access=access
    )
    await store.start(connect_s, make_root=make_root)
    return store


class ZooKeeperMetadata:
    """The `MetadataStore` of a cluster; `connect_zookeeper` creates it."""

    def __init__(
        self,
        servers: str,
        session_ms: int,
        root: str,
        *,
        prove_session: bool = False,
        on_session: Callable[[Session], None] | None = None,
        access: ZooKeeperAccess = OPEN,
    ) -> None:
        assert not root or (_checked(root) and root != "/"), root
        self._root = root
        self._on_session = on_session
        proof_path = (root or "/") if prove_session else None
        self._access = access
        self._bridge = ZooKeeperBridge(servers, session_ms, self, proof_path, access)
        self.acls = NodeAcls(self._bridge, root, access)
        self._reads = ReadBatches(self._bridge)
        self._watches = Watches(_WatchRequests(self._bridge, self._reads))
        # Callbacks of `watch_session`, in the order in which they were set.
        self._session_watchers: list[Callable[[], None]] = []
        # Lost sessions of which some callback was not notified yet; the lease is not held
        # meanwhile.
        self._untold = 0
        # Set once, by `close`.
        self._closed = False

    async def start(self, timeout_s: float, *, make_root: bool) -> None:
        """Connect to ZooKeeper. Only `connect_zookeeper` calls this, once."""
        await self._bridge.start(timeout_s)
        try:
            if self._root and make_root:
                await self._create_parents(self._root, under="")
            if self._access.checks_nodes:
                await self.acls.refuse_open()
        except BaseException:
            await self.close()
            raise

    @property
    def negotiated_session_ms(self) -> int:
        """Return the session timeout that the server granted, in whole ticks and within
        its bounds.
        """
        return self._bridge.session_ms

    @property
    def confirmed_s(self) -> float:
        """Return from when ZooKeeper certainly counts the session timeout, on the clock of leases.

        The value is 0 after a lost session is detected, until all listeners were notified.
        """
        return 0.0 if self._untold else self._bridge.confirmed_s

    async def get(self, path: str) -> Node:
        data, stat = await self._ask_read(wire.GetData(self._full(path), None), path)
        return Node(data or b"", stat.version)

    async def exists(self, path: str) -> bool:
        return await self._ask(wire.Exists(self._full(path), None), path) is not None

    async def set(self, path: str, data: bytes, version: int) -> int:
        full = self._full(path)
        stat = await self._ask(wire.SetData(full, _bounded(full, data), version), path)
        return stat.version

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        """Create a node, as the port describes.

        A sequential create whose reply is lost may leave a node behind.
        """
        flags = _EPHEMERAL * ephemeral | _SEQUENTIAL * sequential
        full = self._full(path)
        request = self._create(full, _bounded(full, data), flags)
        while True:
            try:
                created = await self._ask(request, path)
            except NoNode:
                if not parents:
                    raise
                await self._create_parents(self._full(_parent(path)), under=self._root)
            else:
                return created[len(self._root) :]

    async def _create_parents(self, full: str, *, under: str) -> None:
        """Create `full` and its ancestors below `under`; other clients may create them too."""
        missing = [full]
        while missing:
            try:
                await self._ask(self._create(missing[-1], b"", 0), missing[-1])
                missing.pop()
            except NodeExists:
                missing.pop()
            except NoNode:
                above = _parent(missing[-1])
                if above in ("/", under or "/"):
                    raise
                missing.append(above)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        assert path != "/"
        await self._ask(wire.Delete(self._full(path), version), path)

    async def multi(self, ops: Sequence[Op]) -> None:
        """Apply all of `ops` or none. Raises EntryTooLarge if they exceed one request of the
        server.
        """
        requests = [self._op(op) for op in ops]
        size = HEADER_BYTES + MULTI_OP_BYTES
        size += sum(len(request.serialize()) + MULTI_OP_BYTES for request in requests)
        if size > REQUEST_BYTES_MAX:
            raise EntryTooLarge(f"{len(ops)} operations of {size} bytes in one multi")
        results = await self._ask(wire.Transaction(requests), "multi")
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, KazooException) and not isinstance(result, _SKIPPED):
                raise _as_ours(result, op.path)

    async def children(self, path: str) -> list[str]:
        return sorted(await self._ask_read(wire.GetChildren(self._full(path), None), path))

    async def read_tree(self, path: str) -> dict[str, Node]:
        """Return every node below `path`, as the port describes."""
        tree: dict[str, Node] = {}
        with_children = [path]
        while with_children:
            found: list[str] = []
            async for node, names in self._each(wire.GetChildren, with_children):
                found.extend(_below(node, names))
            with_children = []
            async for node, (data, stat) in self._each(wire.GetData, found):
                tree[node] = Node(data or b"", stat.version)
                if stat.numChildren:
                    with_children.append(node)
            # A node that vanished after it was listed may have been renamed: list its parent again.
            again = {_parent(node) for node in found if node not in tree}
            if again:
                tree = _without(tree, again)
                with_children = [*again, *(node for node in with_children if node in tree)]
        return tree

    async def paths(self, path: str) -> list[str]:
        found: list[str] = []
        level = [path]
        while level:
            below: list[str] = []
            async for node, names in self._each(wire.GetChildren, level):
                below.extend(_below(node, names))
            found.extend(below)
            level = below
        return sorted(found)

    async def sync(self, path: str) -> None:
        try:
            await self._reads.sync(wire.Sync(self._full(path)))
        except KazooException as error:
            raise _as_ours(error, path) from error

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        """Watch `path` for changes after this call, or after any read that follows it."""
        return self._watches.watch(self._full(path), on_changed)

    def watch_session(self, on_renewed: Callable[[], None]) -> Unwatch:
        def notify() -> None:
            if notify in self._session_watchers:
                on_renewed()

        def unwatch() -> None:
            if notify in self._session_watchers:
                self._session_watchers.remove(notify)

        self._session_watchers.append(notify)
        return unwatch

    async def close(self) -> None:
        """End the session, after all requests that were made before. If no server answers within
        two seconds, expiry removes its ephemeral nodes.
        """
        self.acls.close()
        self._reads.flush()
        self._watches.close()
        self._session_watchers.clear()
        await self._bridge.close()

    # The following methods receive events of the bridge.

    def on_connected(self, session: Session, *, renewed: bool, since_zxid: int) -> None:
        self._watches.on_connected(renewed=renewed, since_zxid=since_zxid)
        if renewed:
            loop = asyncio.get_running_loop()
            self._untold += 1
            for notify in self._session_watchers:
                loop.call_soon(notify)
            loop.call_soon(self._on_told)
        if self._on_session is not None:
            with reported("the news of a session"):
                self._on_session(session)

    def _on_told(self) -> None:
        self._untold -= 1

    def on_fired(self, path: str) -> None:
        self._watches.on_fired(path)

    # The following methods send requests.

    async def _ask_read(self, request: Any, path: str) -> Any:
        try:
            return await self._reads.ask(request)
        except KazooException as error:
            raise _as_ours(error, path) from error

    async def _ask(self, request: Any, path: str) -> Any:
        self._reads.flush()
        try:
            return await self._bridge.ask(request)
        except KazooException as error:
            raise _as_ours(error, path) from error

    async def _each(self, request: Any, nodes: Sequence[str]) -> AsyncIterator[tuple[str, Any]]:
        """Yield (node, answer) for each of `nodes` that exists, with several requests in flight."""
        waiting = iter(nodes)
        while some := list(islice(waiting, _WALK_REQUESTS)):
            asked = [self._reads.ask(request(self._full(node), None)) for node in some]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for node, answer in zip(some, answers, strict=True):
                if isinstance(answer, NoNodeError):
                    continue  # the node was deleted during the walk
                if isinstance(answer, KazooException):
                    raise _as_ours(answer, node) from answer
                if isinstance(answer, BaseException):
                    raise answer
                yield node, answer

    def _full(self, path: str) -> str:
        """Return the path from the server's root. Raises EntryTooLarge if no request holds it."""
        assert _checked(path), path
        full = path
        if self._root:
            full = self._root if path == "/" else self._root + path
        _check_size(full)
        return full

    def _create(self, full: str, data: bytes, flags: int) -> wire.Create:
        """Return the request that creates a node with the ACL that its path must have."""
        below = full[len(self._root) :] if full.startswith(f"{self._root}/") else "/"
        return wire.Create(full, data, self._access.acl_of_created(below), flags)

    def _op(self, op: Op) -> Any:
        full = self._full(op.path)
        match op:
            case Create(_, data, ephemeral):
                return self._create(full, _bounded(full, data), _EPHEMERAL * ephemeral)
            case Set(_, data, version):
                return wire.SetData(full, _bounded(full, data), version)
            case Delete(_, version):
                return wire.Delete(full, version)
            case Check(_, version):
                return wire.CheckVersion(full, version)


class _WatchRequests:
    """The requests of `Watches`, on full paths."""

    def __init__(self, bridge: ZooKeeperBridge, reads: ReadBatches) -> None:
        self._bridge = bridge
        self._reads = reads

    def _ask(self, request: Any) -> asyncio.Future[Any]:
        self._reads.flush()
        return self._bridge.ask(request)

    def arm(self, path: str) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
        return self._ask(WatchNode(path)), self._ask(WatchChildren(path))

    def restore(
        self, since_zxid: int, present: Sequence[str], missing: Sequence[str]
    ) -> asyncio.Future[Any]:
        return self._ask(SetWatches(since_zxid, present, missing))

    def remove(self, path: str) -> asyncio.Future[Any]:
        return self._ask(RemoveWatches(path))


def _checked(path: str) -> bool:
    if not path.startswith("/") or "\0" in path:
        return False
    return path == "/" or not {"", ".", ".."}.intersection(path[1:].split("/"))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _below(path: str, names: Sequence[str]) -> list[str]:
    prefix = "" if path == "/" else path
    return [f"{prefix}/{name}" for name in names]


def _without(tree: dict[str, Node], parents: set[str]) -> dict[str, Node]:
    """Return the tree without the nodes below any of `parents`."""
    below = tuple(f"{parent.rstrip('/')}/" for parent in parents)
    return {path: node for path, node in tree.items() if not path.startswith(below)}


def _bounded(full: str, data: bytes) -> bytes:
    assert len(data) <= NODE_BYTES_MAX, f"{full[:_PATH_SHOWN]}: {len(data)} bytes"
    _check_size(full, data)
    return data


def _check_size(full: str, data: bytes = b"") -> None:
    size = FIELDS_BYTES_MAX + len(full.encode()) + len(data)
    if size > REQUEST_BYTES_MAX:
        raise EntryTooLarge(f"{full[:_PATH_SHOWN]}: {size} bytes in one request")


def _as_ours(error: KazooException, path: str) -> Exception:
    """Return the error of the port. An error with an unknown outcome becomes
    MetadataUnavailable.
    """
    if isinstance(error, NoChildrenForEphemeralsError):
        return AssertionError(f"{path}: what is above is ephemeral and has no children")
    if isinstance(error, NoAuthError):
        return AccessDenied(
            f"{path}: ZooKeeper refuses this process by the ACL of the node; set zookeeper-auth to "
            "an identity that the ACL names"
        )
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(path)
    return MetadataUnavailable(f"{path}: {type(error).__name__} {error}".rstrip())
