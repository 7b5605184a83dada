"""Which gateways live: one ephemeral node each, and a list of all that follows them.

    /gateway/brokers/<node id>   {host, port, rack, token, leaving}; it goes with the session

A gateway lives in one incarnation after the other; each has a token that is never used again. So
a token that was seen dead stays dead, and what is written under it is nobody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ParamSpec

from gateway.cluster.port import ClusterMember, Unlisten
from gateway.core.ownership import Incarnation
from gateway.core.sealed import seal, unseal
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

BROKERS = "/gateway/brokers"
SESSIONS_WAITED = 2  # for another process under our node id: one that was killed lives so long
_LOOK_AGAIN_S = 0.2  # a watch wakes earlier
_DEAD_MAX = 10_000  # tokens remembered; one that was forgotten is looked up again

P = ParamSpec("P")


class ClusterMembership:
    """This gateway among the others, in one incarnation after the other.

    Whoever runs it calls `refresh` after `on_stale`, and `try_register` while not `registered`.
    """

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
    ) -> None:
        self.node_id = node_id
        self.registered = False  # this incarnation lives, as far as is known
        self.leaving = False
        self.stale = True  # the list may have changed since it was read
        self.on_stale: Callable[[], None] = lambda: None
        self._metadata = metadata
        self._clock = clock
        self._address = (host, port, rack)
        self._session_s = session_ms / 1000
        self._new_token = new_token
        self._token = new_token()
        self._own_tokens: set[str] = set()  # of former incarnations
        self._live: dict[str, ClusterMember] = {}  # by token
        self._members: tuple[ClusterMember, ...] = ()
        self._dead: dict[str, None] = {}  # tokens, in the order they were found out
        self._on_changed: list[Callable[[], None]] = []
        self._on_expired: list[Callable[[], None]] = []
        self._nodes: dict[str, Unwatch] = {}  # of brokers that are followed
        self._refreshing = asyncio.Lock()  # or an older list might come in after a newer one
        self._changed = asyncio.Event()
        self._closed = False
        self._unwatch = [
            metadata.watch(BROKERS, self._on_news),
            metadata.watch_session(self._on_renewed),
        ]

    # Asking. All of this answers from memory but for `is_dead`.

    @property
    def incarnation(self) -> Incarnation | None:
        """None: not registered, so nothing can be owned."""
        return Incarnation(self.node_id, self._token) if self.registered else None

    @property
    def token(self) -> str:
        """The token of the present incarnation, registered or not."""
        return self._token

    @property
    def self_member(self) -> ClusterMember:
        return ClusterMember(self.node_id, *self._address, self._token, self.leaving)

    def members(self) -> Sequence[ClusterMember]:
        """Gateways that live, by node id, as far as is known here."""
        return self._members

    def member(self, token: str) -> ClusterMember | None:
        """None: it is not in the list."""
        return self._live.get(token)

    def is_known_dead(self, who: Incarnation) -> bool:
        return who.token not in self._live and who.token in self._dead

    async def is_dead(self, who: Incarnation) -> bool:
        """The incarnation has ended, for ever. The list may be old, so its node is looked at.

        Raises MetadataUnavailable.
        """
        if who.token in self._live:
            return False
        if who.token in self._dead:
            return True
        path = f"{BROKERS}/{who.node_id}"
        await self._metadata.sync(path)
        try:
            found = _decode(path, await self._metadata.get(path))
        except NoNode:
            found = None
        except CorruptFormat:
            return False  # it may live
        if found is not None and found.token == who.token:
            self._on_news()  # it lives and the list does not have it yet
            return False
        self._bury(who.token)
        return True

    # Listening.

    def on_changed(self, changed: Callable[[], None]) -> Unlisten:
        """`changed` runs after the list of members is another."""
        return listen(self._on_changed, changed)

    def on_expired(self, expired: Callable[[], None]) -> Unlisten:
        """`expired` runs when an incarnation of this gateway has ended: nothing is owned."""
        return listen(self._on_expired, expired)

    # Living.

    async def register(self) -> None:
        """Others see this gateway, under a token of its own. Raises NotOwner, MetadataUnavailable.

        NotOwner: another process lives under this node id, and did so for two sessions.
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
        """As `try_register`; the store may be away until then."""
        try:
            return await self.try_register()
        except MetadataUnavailable as error:
            if self._clock.monotonic_s() >= give_up_s:
                raise
            return str(error)

    async def try_register(self) -> str | None:
        """None: registered. Else who lives under this node id. Raises MetadataUnavailable."""
        path, token = f"{BROKERS}/{self.node_id}", self._token
        try:
            await self._metadata.create(path, self._said(), ephemeral=True, parents=True)
        except NodeExists:
            other = await self._who_is_there(path)
            if other is not None:
                return other
            await self._say()  # what it was registered with may have changed since
        if token != self._token:
            return "this gateway's session ended meanwhile"
        self.registered = True
        self._on_news()
        return None

    async def _who_is_there(self, path: str) -> str | None:
        """Who has our node id; None: this incarnation, whose reply was lost."""
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

    def _said(self) -> bytes:
        host, port, rack = self._address
        return seal(
            {
                "host": host,
                "port": port,
                "rack": rack,
                "token": self._token,
                "leaving": self.leaving,
            }
        )

    async def set_address(self, host: str, port: int) -> None:
        """All can see where clients reach this gateway."""
        self._address = (host, port, self._address[2])
        await self._say()

    async def leave_soon(self) -> None:
        """All can see that this gateway takes nothing more."""
        self.leaving = True
        await self._say()

    async def _say(self) -> None:
        """Our node says what is so now. Raises MetadataUnavailable; may be called again."""
        path = f"{BROKERS}/{self.node_id}"
        while True:
            try:
                node = await self._metadata.get(path)
                if node.data == self._said() or _decode(path, node).token != self._token:
                    break
                await self._metadata.set(path, self._said(), node.version)
            except BadVersion:
                continue
            except NoNode:
                break  # it is said when it is made again
        self._on_news()

    async def refresh(self) -> None:
        """The list is as the store has it. Raises MetadataUnavailable; then it is still stale."""
        async with self._refreshing:
            if self.stale:
                await self._refresh()

    async def _refresh(self) -> None:
        self.stale = False
        me = self.incarnation  # registered meanwhile, it may not be among those found
        try:
            found = await self._read()
        except BaseException:
            self.stale = True
            raise
        lives = any(member.token == self._token for member in found)
        if me is not None and me == self.incarnation and not lives:
            self._end()  # somebody removed our node
        # A new session may read an older list: it neither kills nor raises anybody from the dead.
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
            logger().error("a gateway's registration cannot be read", reason=str(error))
            return None

    def _bury(self, token: str) -> None:
        self._dead[token] = None
        while len(self._dead) > _DEAD_MAX:
            del self._dead[next(iter(self._dead))]

    def _on_news(self) -> None:
        self.stale = True
        self.on_stale()

    def _on_renewed(self) -> None:
        self._end()
        self._on_news()

    def _end(self) -> None:
        """This incarnation is over; the next one has another token."""
        self._own_tokens.add(self._token)
        self._bury(self._token)
        self._token = self._new_token()
        was, self.registered = self.registered, False
        if was:
            for expired in list(self._on_expired):
                expired()

    async def close(self) -> None:
        """Others see that this gateway has gone. Never raises: its node goes with the session."""
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
    """The callback is in the list until the returned function is called."""

    def told(*words: P.args, **named: P.kwargs) -> None:
        callback(*words, **named)

    def unlisten() -> None:
        if told in to:
            to.remove(told)

    to.append(told)
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
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptFormat(f"{path}: {error!r}") from error
