# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The ACLs of all nodes below a root: a check for open nodes, and their repair.

A tree may have millions of nodes. The walk is depth-first over parts of at most `_NODES_AT_ONCE`
nodes, whose requests are in flight together. So memory grows with the depth of the tree and with
its widest node, not with the number of nodes. ZooKeeper's own nodes (`/zookeeper`) are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.protocol import serialization as wire
from kazoo.security import ACL

from ledger.adapters.zookeeper.zookeeper_access import WORLD, ZooKeeperAccess
from ledger.adapters.zookeeper.zookeeper_bridge import ZooKeeperBridge
from ledger.adapters.zookeeper.zookeeper_connection import log
from ledger.errors import LedgerError, MetadataUnavailable, OpenToAnyone
from ledger.tasks import start_once

_NODES_AT_ONCE: Final = 256
_CHILDREN_AT_ONCE: Final = 20_000  # names that are listed together, unless one node has more
_AT_START: Final = 10_000  # nodes that are checked before a start goes on
_SHOWN: Final = 100  # paths that a report names
_SYSTEM: Final = "/zookeeper"


class _Found(NamedTuple):
    """A node with its ACL. `acl` is None if it may not be read."""

    path: str
    acl: Sequence[ACL] | None
    children: int


@dataclass(slots=True)
class AclReport:
    """What a walk found. Each list of paths has at most 100 of them."""

    nodes: int = 0
    open: int = 0  # nodes with a right for world:anyone
    other: int = 0  # nodes whose ACL differs in another way
    changed: int = 0  # nodes that now have the right ACL
    refused: int = 0  # nodes that ZooKeeper does not let this identity change or read
    open_paths: list[str] = field(default_factory=list[str])
    other_paths: list[str] = field(default_factory=list[str])
    refused_paths: list[str] = field(default_factory=list[str])

    @property
    def left(self) -> int:
        """The nodes that are still not as they should be."""
        return self.open + self.other - self.changed + self.refused


class NodeAcls:
    """The ACLs of one store. `zookeeper_metadata` makes it."""

    def __init__(self, bridge: ZooKeeperBridge, root: str, access: ZooKeeperAccess) -> None:
        self._bridge = bridge
        self._root = root
        self._access = access
        # The check of the nodes beyond the first ones of a start. None while there is none.
        self._rest: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()

    async def refuse_open(self) -> None:
        """Raise OpenToAnyone if one of the first nodes is open, and check the others meanwhile.

        An open node among those beyond `_AT_START` is logged as an error, with the fix.
        """
        parts = self._parts()
        nodes = 0
        async for part in parts:
            found = [each.path for each in part if _is_open(each.acl)]
            if found:
                raise OpenToAnyone(_open_text(found))
            nodes += len(part)
            if nodes >= _AT_START:
                rest = self._check_rest(parts)
                self._rest = start_once("the check of ACLs", rest, expected=LedgerError)
                return

    async def _check_rest(self, parts: AsyncIterator[list[_Found]]) -> None:
        async for part in parts:
            found = [each.path for each in part if _is_open(each.acl)]
            if found:
                log.error(_open_text(found))
                return

    async def check(self, on_part: Callable[[AclReport], None] | None = None) -> AclReport:
        """Compare the ACLs of all nodes with those that they should have. Changes nothing."""
        return await self._walk(on_part, repairs=False)

    async def apply(self, on_part: Callable[[AclReport], None] | None = None) -> AclReport:
        """Write the ACL of each node that has another one. It may be repeated at any time."""
        return await self._walk(on_part, repairs=True)

    async def _walk(
        self, on_part: Callable[[AclReport], None] | None, *, repairs: bool
    ) -> AclReport:
        report = AclReport()
        async for part in self._parts():
            report.nodes += len(part)
            wrong = [each for each in part if self._note(each, report)]
            if repairs and wrong:
                await self._repair(wrong, report)
            if on_part is not None:
                on_part(report)
        return report

    def _note(self, found: _Found, report: AclReport) -> bool:
        """Count a node. Returns True if its ACL must be written."""
        if found.acl is None:
            report.refused += 1
            _add(report.refused_paths, found.path)
            return False
        if _is_open(found.acl):
            report.open += 1
            _add(report.open_paths, found.path)
            return True
        if set(found.acl) == set(self._access.closed_acl(self._below(found.path))):
            return False
        report.other += 1
        _add(report.other_paths, found.path)
        return True

    async def _repair(self, wrong: Sequence[_Found], report: AclReport) -> None:
        requests = [
            wire.SetACL(each.path, self._access.closed_acl(self._below(each.path)), -1)
            for each in wrong
        ]
        for found, answer in zip(wrong, await self._ask_all(requests), strict=True):
            if isinstance(answer, NoAuthError):
                self._note_refused(found, report)
            elif not isinstance(answer, NoNodeError):
                _raise_if_error(answer, found.path)
                report.changed += 1
            elif _is_open(found.acl):  # it was deleted meanwhile
                report.open -= 1
            else:
                report.other -= 1

    @staticmethod
    def _note_refused(found: _Found, report: AclReport) -> None:
        report.refused += 1
        _add(report.refused_paths, found.path)
        if _is_open(found.acl):
            report.open -= 1
        else:
            report.other -= 1

    def _below(self, full: str) -> str:
        return full[len(self._root) :] or "/"

    async def _parts(self) -> AsyncIterator[list[_Found]]:
        """Yield all nodes, the root first, in parts of at most `_NODES_AT_ONCE`."""
        pending: list[Iterator[str] | list[_Found]] = [iter([self._root or "/"])]
        while pending:
            last = pending.pop()
            if isinstance(last, list):
                pending.append(iter(await self._names(last)))
                continue
            part = await self._acls(list(islice(last, _NODES_AT_ONCE)))
            if part is None:
                continue
            pending.append(last)
            yield part
            pending.extend(_groups(part))

    async def _acls(self, paths: Sequence[str]) -> list[_Found] | None:
        """Return the ACLs of these nodes, without those that are gone. None: there are no paths."""
        if not paths:
            return None
        found: list[_Found] = []
        answers = await self._ask_all([wire.GetACL(path) for path in paths])
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, NoNodeError):
                continue
            if isinstance(answer, NoAuthError):
                found.append(_Found(path, None, 0))
                continue
            _raise_if_error(answer, path)
            acl, stat = answer
            found.append(_Found(path, acl, stat.numChildren))
        return found

    async def _names(self, nodes: Sequence[_Found]) -> list[str]:
        """Return the paths of the children of these nodes."""
        names: list[str] = []
        answers = await self._ask_all([wire.GetChildren(each.path, None) for each in nodes])
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, (NoNodeError, NoAuthError)):
                continue  # one that may not be listed was counted as refused, or was just closed
            _raise_if_error(answer, node.path)
            prefix = node.path.rstrip("/")
            names += [f"{prefix}/{name}" for name in answer if f"{prefix}/{name}" != _SYSTEM]
        return names

    async def _ask_all(self, requests: Sequence[Any]) -> list[Any]:
        """Return the answers, or their exceptions, with all requests in flight together."""
        asked = [self._bridge.ask(request) for request in requests]
        return await asyncio.gather(*asked, return_exceptions=True)


def _groups(part: Sequence[_Found]) -> list[list[_Found]]:
    """Return the nodes with children, in groups with at most `_CHILDREN_AT_ONCE` of them."""
    groups: list[list[_Found]] = []
    children = _CHILDREN_AT_ONCE
    for each in part:
        if not each.children:
            continue
        if children + each.children > _CHILDREN_AT_ONCE:
            groups.append([])
            children = 0
        groups[-1].append(each)
        children += each.children
    return groups


def _is_open(acl: Sequence[ACL] | None) -> bool:
    return acl is not None and any(each.id.scheme == WORLD for each in acl)


def _add(paths: list[str], path: str) -> None:
    if len(paths) < _SHOWN:
        paths.append(path)


def _raise_if_error(answer: Any, path: str) -> None:
    if isinstance(answer, KazooException):
        raise MetadataUnavailable(f"{path}: {type(answer).__name__} {answer}".rstrip())
    if isinstance(answer, BaseException):
        raise answer


def _open_text(found: Sequence[str]) -> str:
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"node {found[0][:200]}{more} is open to world:anyone; run `gateway security zookeeper "
        "--apply`, or set zookeeper-set-acl to migrate until then"
    )
