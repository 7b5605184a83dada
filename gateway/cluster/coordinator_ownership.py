"""The coordinator of each group.

    /gateway/coordinators/<group>                    {node_id, token} of the claimant
    /gateway/claims/<node id>-<token>/<group>        the claimant's index, empty

Both nodes change together, so one read finds all groups of a dead broker. A claim whose token names
no live broker is void. In addition, the store of committed offsets fences the previous coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from gateway.cluster.membership import ClusterMembership
from gateway.cluster.port import ClusterMember
from gateway.core.ownership import Incarnation
from gateway.core.ring import Ring
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NotEmpty,
    NotOwner,
)
from ledger.ports.metadata import Create, Delete, MetadataStore, Op, Set
from ledger.sealed import seal, unseal
from ledger.streams.shared_transactions import SharedTransactions
from subscriptions.znodes.znode_format import node_name, subscriber_of

COORDINATORS = "/gateway/coordinators"
CLAIMS = "/gateway/claims"

_TRIES = 8
_REFUSED = (BadVersion, NodeExists, NoNode)


class _CoordinatorClaim(NamedTuple):
    """The claim of a group as the store has it. `version` is None if the node does not exist."""

    group: str
    who: Incarnation | None
    version: int | None


class CoordinatorOwnership:
    """The group claims of this broker. `ring` returns the live brokers that are not leaving."""

    def __init__(
        self, metadata: MetadataStore, membership: ClusterMembership, ring: Callable[[], Ring]
    ) -> None:
        self._metadata = metadata
        self._transactions = SharedTransactions(metadata)
        self._membership = membership
        self._ring = ring
        # The incarnation whose parents of claims exist, made once under `_making`.
        self._made_for: Incarnation | None = None
        self._making = asyncio.Lock()
        # Groups that this incarnation has claimed. Cleared when the session ends.
        self._claimed: set[str] = set()
        membership.on_expired(self._claimed.clear)

    async def coordinator(self, group: str) -> ClusterMember | None:
        """Return the live claimant, otherwise the candidate. Raises MetadataUnavailable."""
        if group in self._claimed:
            return self._membership.self_member
        written = await self._read(group)
        if written.who is not None:
            claimant = self._membership.member(written.who.token)
            if claimant is not None:
                return claimant
            if not await self._membership.is_dead(written.who):
                await self._membership.refresh()
                return self._membership.member(written.who.token)
        return self._member(self._ring().candidate(group))

    async def claim(self, group: str) -> None:
        """See `GroupClaims`."""
        for _ in range(_TRIES):
            me = self._me()
            if group in self._claimed:
                return
            if await self._try_claim(group, me):
                self._check_still(me)
                self._claimed.add(group)
                return
        raise MetadataUnavailable(f"group {group}: others claim and release it all the time")

    async def check(self, group: str) -> None:
        """See `GroupClaims`."""
        me = self._me()
        if group in self._claimed:
            return
        written = await self._read(group)
        if written.who != me:
            await self._check_free(written)
        self._check_still(me)

    async def release(self, group: str) -> None:
        """See `GroupClaims`."""
        self._claimed.discard(group)
        me = self._membership.incarnation
        if me is None:
            return
        for _ in range(_TRIES):
            written = await self._read(group)
            if written.who != me or written.version is None:
                return
            with suppress(*_REFUSED):
                await self._transactions.multi(
                    [Delete(_path(group), written.version), Delete(_index(me, group))]
                )
                return

    def candidate(self, group: str) -> bool:
        """See `GroupClaims`."""
        return self._ring().candidate(group) == self._membership.node_id

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        """See `GroupClaims`. Costs one request per claimant."""
        me, asked, found = self._membership.incarnation, set(groups), set[str]()
        for name in await self._children(CLAIMS):
            claimant = _incarnation(name)
            if claimant is None or claimant == me or await self._membership.is_dead(claimant):
                continue
            names = await self._children(f"{CLAIMS}/{name}")
            found.update(asked.intersection(map(subscriber_of, names)))
        return found

    async def orphans(self) -> list[str]:
        """Return the groups of dead claimants of which this broker is the candidate, sorted.

        It costs one read per dead claimant. Raises MetadataUnavailable.
        """
        if self._membership.leaving or self._membership.incarnation is None:
            return []
        found: list[str] = []
        for name in await self._children(CLAIMS):
            claimant = _incarnation(name)
            if claimant is not None and await self._membership.is_dead(claimant):
                found.extend(await self._orphans_of(name))
        return sorted(found)

    async def _orphans_of(self, claimant: str) -> list[str]:
        path = f"{CLAIMS}/{claimant}"
        names = await self._children(path)
        if not names:
            with suppress(NoNode, NotEmpty):
                await self._metadata.delete(path)
        ring, own = self._ring(), self._membership.node_id
        mine: list[str] = []
        for seen, name in enumerate(names):
            if seen % 1000 == 999:
                await asyncio.sleep(0)  # let other tasks run
            group = subscriber_of(name)
            if ring.candidate(group) == own:
                mine.append(group)
        return mine

    # One claim.

    async def _try_claim(self, group: str, me: Incarnation) -> bool:
        """Claim, or return False if the claim changed. Raises NotOwner, MetadataUnavailable."""
        written = await self._read(group)
        if written.who == me:
            return True  # an earlier attempt succeeded, but its reply was lost
        await self._check_free(written)
        self._check_still(me)
        return await self._write(written, me)

    async def _write(self, claim: _CoordinatorClaim, me: Incarnation) -> bool:
        """Write the claim and its index. Returns False if the claim changed after it was read."""
        group, who, version = claim
        data = seal({"node_id": me.node_id, "token": me.token})
        ops: list[Op] = []
        if version is None:
            ops.append(Create(_path(group), data))
        else:
            ops.append(Set(_path(group), data, version))
        if await self._is_indexed(claim, me):
            ops.append(Delete(_index(who or me, group)))
        ops.append(Create(_index(me, group)))
        await self._make_parents(me)
        self._check_still(me)
        try:
            await self._transactions.multi(ops)
        except NoNode:
            self._made_for = None
            return False
        except _REFUSED:
            return False
        return True

    async def _is_indexed(self, claim: _CoordinatorClaim, me: Incarnation) -> bool:
        """Return whether the claimant's index has the claim. An unreadable claim may be ours."""
        if claim.version is None:
            return False
        try:
            await self._metadata.get(_index(claim.who or me, claim.group))
        except NoNode:
            return False
        return True

    async def _make_parents(self, me: Incarnation) -> None:
        async with self._making:
            if self._made_for == me:
                return
            for path in (COORDINATORS, _claims_of(me)):
                with suppress(NodeExists):
                    await self._metadata.create(path, parents=True)
            self._made_for = me

    async def _check_free(self, written: _CoordinatorClaim) -> None:
        """Check that no live broker has the claim and we are the candidate. Raises NotOwner."""
        if written.who is not None and not await self._membership.is_dead(written.who):
            raise NotOwner(f"group {written.group}: gateway {written.who.node_id} has it")
        candidate = self._ring().candidate(written.group)
        if candidate != self._membership.node_id:
            raise NotOwner(f"group {written.group}: gateway {candidate} is to have it")

    async def _read(self, group: str) -> _CoordinatorClaim:
        path = _path(group)
        try:
            node = await self._metadata.get(path)
        except NoNode:
            return _CoordinatorClaim(group, None, None)
        try:
            document = unseal(node.data, path)
            who = Incarnation(int(document["node_id"]), str(document["token"]))
        except (CorruptFormat, KeyError, ValueError, TypeError):
            return _CoordinatorClaim(group, None, node.version)  # a corrupt claim names no claimant
        return _CoordinatorClaim(group, who, node.version)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._metadata.children(path)
        except NoNode:
            return []

    def _me(self) -> Incarnation:
        """Return this incarnation. Raises MetadataUnavailable, or NotOwner while leaving."""
        me = self._membership.incarnation
        if me is None:
            raise MetadataUnavailable("this gateway is not registered")
        if self._membership.leaving:
            raise NotOwner("this gateway is leaving")
        return me

    def _check_still(self, me: Incarnation) -> None:
        if self._membership.incarnation != me:
            raise MetadataUnavailable("this gateway's session ended meanwhile")

    def _member(self, node_id: int | None) -> ClusterMember | None:
        members = self._membership.members()
        return next((member for member in members if member.node_id == node_id), None)


def _path(group: str) -> str:
    return f"{COORDINATORS}/{node_name(group)}"


def _claims_of(who: Incarnation) -> str:
    return f"{CLAIMS}/{who.node_id}-{who.token}"


def _index(who: Incarnation, group: str) -> str:
    return f"{_claims_of(who)}/{node_name(group)}"


def _incarnation(name: str) -> Incarnation | None:
    node_id, _, token = name.partition("-")
    return Incarnation(int(node_id), token) if node_id.isdigit() and token else None
