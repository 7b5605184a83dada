"""The live brokers: one ephemeral node each, and a list that follows the nodes.

    /gateway/brokers/<node id>   {host, port, rack, token, leaving, ...}; deleted with the session

A broker has one incarnation after the other, each with a token that is never used again. So a token
that was found dead stays dead, and claims written under this token are void.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, cast

from gateway.cluster.port import ClusterMember, ListenerAddress, Unlisten
from gateway.core.feature_levels import LevelRange, Supported
from gateway.core.ownership import Incarnation
from gateway.log import logger
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NotOwner,
)
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore, Node, Unwatch
from ledger.sealed import seal, unseal

BROKERS = "/gateway/brokers"
# The number of session timeouts to wait for our node id, until the session of a killed process
# expires.
SESSIONS_WAITED = 2
_LOOK_AGAIN_S = 0.2  # seconds between attempts to register when no watch fires
_DEAD_MAX = 10_000  # the number of dead tokens remembered; a forgotten one is looked up again

P = ParamSpec("P")


class ClusterMembership:
    """This broker's registration, and the list of live brokers.

    The owner calls `refresh` after `on_stale`, and `try_register` while not `registered`.
    """

    authorizes = False
    """Whether an authorizer decides what clients of this broker may do. Set before `register`."""

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        *,
        node_id: int,
        host: str,
        port: int,
        rack: str,
        session_ms: int,
        new_token: Callable[[], str],
        supported: Supported | None = None,
    ) -> None:
        self.node_id = node_id
        # True from a successful registration until the session ends, as far as this process can
        # tell.
        self.registered = False
        # True from `leave_soon` on, when this broker claims nothing any more. Never reset.
        self.leaving = False
        # True if the list may have changed since it was read. Cleared by `refresh`.
        self.stale = True
        # Runs when `stale` becomes True.
        self.on_stale: Callable[[], None] = lambda: None
        self._metadata = metadata
        self._clock = clock
        self._address = (host, port, rack)
        # The address for other brokers; empty and 0 if it is the one for clients.
        self._peer_address = ("", 0)
        # The addresses for clients of each listener. Empty until `set_address`.
        self._listeners: tuple[ListenerAddress, ...] = ()
        # The levels of features that this broker supports.
        self._supported = supported or {}
        self._session_s = session_ms / 1000
        self._new_token = new_token
        # The token of the present incarnation. Replaced when the session ends.
        self._token = new_token()
        # The tokens of this process's former incarnations.
        self._own_tokens: set[str] = set()
        # The list as last read, by token and by node id. It contains no token of `_dead`.
        self._live: dict[str, ClusterMember] = {}
        self._members: tuple[ClusterMember, ...] = ()
        # Tokens that were found dead, the oldest first, at most `_DEAD_MAX`.
        self._dead: dict[str, None] = {}
        # Callbacks, in the order in which they were added.
        self._on_changed: list[Callable[[], None]] = []
        self._on_expired: list[Callable[[], None]] = []
        # The watch of each listed broker's node, by node name.
        self._nodes: dict[str, Unwatch] = {}
        # Held by `refresh`, so that an older list cannot replace a newer one.
        self._refreshing = asyncio.Lock()
        # Set when our node changed while `register` waits.
        self._changed = asyncio.Event()
        # The number of sessions of the store that were lost so far.
        self._sessions = 0
        # True after `close`. Nodes are no longer watched then.
        self._closed = False
        self._unwatch = [
            metadata.watch(BROKERS, self._on_news),
            metadata.watch_session(self._on_renewed),
        ]

    # Questions. All but `is_dead` are answered from memory.

    @property
    def incarnation(self) -> Incarnation | None:
        """The present incarnation. None while this broker is not registered."""
        return Incarnation(self.node_id, self._token) if self.registered else None

    @property
    def token(self) -> str:
        """The token of the present incarnation, registered or not."""
        return self._token

    @property
    def self_member(self) -> ClusterMember:
        host, port, rack = self._address
        return ClusterMember(
            node_id=self.node_id,
            host=host,
            port=port,
            rack=rack,
            token=self._token,
            leaving=self.leaving,
            peer_host=self._peer_address[0],
            peer_port=self._peer_address[1],
            listeners=self._listeners,
            authorizes=self.authorizes,
        )

    def members(self) -> Sequence[ClusterMember]:
        """Return the live brokers by node id, as last read."""
        return self._members

    def member(self, token: str) -> ClusterMember | None:
        """Return the listed broker with this token, or None."""
        return self._live.get(token)

    async def supported_by_others(self) -> Mapping[int, Supported]:
        """Read the levels of features that the other registered brokers support, by node id.

        Raises MetadataUnavailable.
        """
        await self._metadata.sync(BROKERS)
        nodes = await self._metadata.read_tree(BROKERS)
        found = {int(path.rpartition("/")[2]): _features(node) for path, node in nodes.items()}
        found.pop(self.node_id, None)
        return found

    def is_known_dead(self, who: Incarnation) -> bool:
        return who.token not in self._live and who.token in self._dead

    async def is_dead(self, who: Incarnation) -> bool:
        """Return whether the incarnation has ended for good.

        The list may be out of date, so the broker's node is read. Raises MetadataUnavailable.
        """
        if who.token in self._live:
            return False
        if who.token in self._dead:
            return True
        path = f"{BROKERS}/{who.node_id}"
        try:
            found = await self._read_after_sync(path)
        except CorruptFormat:
            return False  # this incarnation may be alive
        if found is not None and found.token == who.token:
            self._on_news()  # the broker is alive, but the list does not have it yet
            return False
        self._mark_dead(who.token)
        return True

    async def _read_after_sync(self, path: str) -> ClusterMember | None:
        """Read a broker's node as it is now, or None. Raises MetadataUnavailable, CorruptFormat.

        A new session may be on a server that is behind, and no `sync` of an earlier session helps.
        """
        while True:
            session = self._sessions
            await self._metadata.sync(path)
            try:
                found = _decode(path, await self._metadata.get(path))
            except NoNode:
                found = None
            if session == self._sessions:
                return found

    # Callbacks.

    def on_changed(self, changed: Callable[[], None]) -> Unlisten:
        """Run `changed` after the list of brokers has changed."""
        return listen(self._on_changed, changed)

    def on_expired(self, expired: Callable[[], None]) -> Unlisten:
        """Run `expired` when an incarnation of this broker has ended and owns nothing any more."""
        return listen(self._on_expired, expired)

    # Registration.

    async def register(self) -> None:
        """Register this incarnation. Raises NotOwner, MetadataUnavailable.

        NotOwner means that another process has kept this node id for two session timeouts.
        """
        give_up_s = self._clock.monotonic_s() + SESSIONS_WAITED * self._session_s
        unwatch = self._metadata.watch(f"{BROKERS}/{self.node_id}", self._changed.set)
        try:
            while (other := await self._try_register(give_up_s)) is not None:
                if self._clock.monotonic_s() >= give_up_s:
                    raise NotOwner(other)
                await self._news_within(_LOOK_AGAIN_S)
        finally:
            unwatch()

    async def _news_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _try_register(self, give_up_s: float) -> str | None:
        """Call `try_register`, and retry until `give_up_s` while the store is unavailable."""
        try:
            return await self.try_register()
        except MetadataUnavailable as error:
            if self._clock.monotonic_s() >= give_up_s:
                raise
            return str(error)

    async def try_register(self) -> str | None:
        """Register, or return a description of the process that has this node id.

        Raises MetadataUnavailable.
        """
        path, token = f"{BROKERS}/{self.node_id}", self._token
        try:
            await self._metadata.create(path, self._registration(), ephemeral=True, parents=True)
        except NodeExists:
            other = await self._current_holder(path)
            if other is not None:
                return other
            # The address may have changed since the node was written.
            await self._write_registration()
        if token != self._token:
            return "this gateway's session ended meanwhile"
        self.registered = True
        self._on_news()
        return None

    async def _current_holder(self, path: str) -> str | None:
        """Describe the process that has our node id, or None if it is this incarnation."""
        try:
            node = await self._metadata.get(path)
            found = _decode(path, node)
        except NoNode:
            return "a gateway that just left"
        except CorruptFormat as error:
            return str(error)
        if found.token == self._token:
            return None
        if found.token in self._own_tokens:
            with suppress(NoNode, BadVersion):
                await self._metadata.delete(path, node.version)
            return "this gateway itself, until its former session has ended"
        return f"gateway {self.node_id} at {found.host}:{found.port} lives already"

    def _registration(self) -> bytes:
        host, port, rack = self._address
        return seal(
            {
                "host": host,
                "port": port,
                "rack": rack,
                "token": self._token,
                "leaving": self.leaving,
                "peer_host": self._peer_address[0],
                "peer_port": self._peer_address[1],
                "listeners": [list(each) for each in self._listeners],
                "authorizes": self.authorizes,
                "features": {name: list(each) for name, each in self._supported.items()},
            }
        )

    async def set_address(
        self,
        host: str,
        port: int,
        peer: tuple[str, int] = ("", 0),
        listeners: Sequence[ListenerAddress] = (),
    ) -> None:
        """Publish the addresses for clients, and the one for other brokers if it differs.

        Brokers of earlier releases read `host` and `port`, and give them to all their clients.
        """
        self._address = (host, port, self._address[2])
        self._peer_address = peer
        self._listeners = tuple(listeners)
        await self._write_registration()

    async def leave_soon(self) -> None:
        """Publish that this broker claims nothing any more."""
        self.leaving = True
        await self._write_registration()

    async def _write_registration(self) -> None:
        """Write the present state to our node. Idempotent. Raises MetadataUnavailable."""
        path = f"{BROKERS}/{self.node_id}"
        while True:
            try:
                node = await self._metadata.get(path)
                if node.data == self._registration() or _decode(path, node).token != self._token:
                    break
                await self._metadata.set(path, self._registration(), node.version)
            except BadVersion:
                continue
            except NoNode:
                break  # the next registration writes the new state
        self._on_news()

    async def refresh(self) -> None:
        """Read the list if it is stale. It stays stale if MetadataUnavailable is raised."""
        async with self._refreshing:
            if self.stale:
                await self._refresh()

    async def _refresh(self) -> None:
        self.stale = False
        me = self.incarnation  # the list may lack an incarnation that registered during the read
        try:
            found = await self._read()
        except BaseException:
            self.stale = True
            raise
        lives = any(member.token == self._token for member in found)
        if me is not None and me == self.incarnation and not lives:
            self._end()  # our node was removed, so this incarnation has ended
        # A new session may read an older list. A token that was found dead stays dead all the same.
        members = tuple(sorted(member for member in found if member.token not in self._dead))
        if members != self._members:
            self._members = members
            self._live = {member.token: member for member in members}
            for changed in list(self._on_changed):
                changed()

    async def _read(self) -> list[ClusterMember]:
        try:
            names = await self._metadata.children(BROKERS)
        except NoNode:
            names = []
        for gone in self._nodes.keys() - set(names):
            self._nodes.pop(gone)()
        for name in names:
            if name not in self._nodes and not self._closed:
                self._nodes[name] = self._metadata.watch(f"{BROKERS}/{name}", self._on_news)
        found = await asyncio.gather(*(self._read_one(name) for name in names))
        return [member for member in found if member is not None]

    async def _read_one(self, name: str) -> ClusterMember | None:
        path = f"{BROKERS}/{name}"
        try:
            return _decode(path, await self._metadata.get(path))
        except NoNode:
            return None
        except CorruptFormat as error:
            logger().error("a broker's registration cannot be read", reason=str(error))
            return None

    def _mark_dead(self, token: str) -> None:
        self._dead[token] = None
        while len(self._dead) > _DEAD_MAX:
            del self._dead[next(iter(self._dead))]

    def _on_news(self) -> None:
        self.stale = True
        self.on_stale()

    def _on_renewed(self) -> None:
        self._sessions += 1
        self._end()
        self._on_news()

    def _end(self) -> None:
        """End this incarnation, and draw the token of the next one."""
        self._own_tokens.add(self._token)
        self._mark_dead(self._token)
        self._token = self._new_token()
        was, self.registered = self.registered, False
        if was:
            for expired in list(self._on_expired):
                expired()

    async def close(self) -> None:
        """Delete our node. Raises nothing, because the node is deleted with the session anyway."""
        if self._closed:
            return
        self._closed = True
        for unwatch in (*self._unwatch, *self._nodes.values()):
            unwatch()
        path = f"{BROKERS}/{self.node_id}"
        with suppress(NoNode, BadVersion, MetadataUnavailable, CorruptFormat):
            node = await self._metadata.get(path)
            if _decode(path, node).token == self._token:
                await self._metadata.delete(path, node.version)
        self.registered = False


def listen(to: list[Callable[P, None]], callback: Callable[P, None]) -> Unlisten:
    """Add the callback to the list until the returned function is called."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        callback(*args, **kwargs)

    def unlisten() -> None:
        if run in to:
            to.remove(run)

    to.append(run)
    return unlisten


def _decode(path: str, node: Node) -> ClusterMember:
    document = unseal(node.data, path)
    try:
        return ClusterMember(
            node_id=int(path.rpartition("/")[2]),
            host=str(document["host"]),
            port=int(document["port"]),
            rack=str(document["rack"]),
            token=str(document["token"]),
            leaving=bool(document["leaving"]),
            peer_host=str(document.get("peer_host", "")),
            peer_port=int(document.get("peer_port", 0)),
            listeners=tuple(
                ListenerAddress(str(name), str(host), int(port))
                for name, host, port in document.get("listeners", ())
            ),
            authorizes=bool(document.get("authorizes", False)),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptFormat(f"{path}: {error!r}") from error


def _features(node: Node) -> Supported:
    """Return the levels of features that a broker registered. It has none if they are damaged."""
    try:
        levels = unseal(node.data, BROKERS).get("features", {})
        return {
            name: LevelRange(int(each[0]), int(each[1]))
            for name, each in cast("dict[str, Any]", levels).items()
        }
    except (AttributeError, CorruptFormat, IndexError, TypeError, ValueError):
        return {}
