"""Keeps the ACLs of the cluster, and decides by them: in the store, and in memory of each gateway.

A row has all ACLs of one pattern, so that 10,000 ACLs are few nodes. A gateway that cannot read a
row denies everything to all but super users: the row may have an ACL that denies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from gateway.access import Operation, Resource, ResourceType
from gateway.config import Authorization
from gateway.core.acl_rules import AclRules, Decision
from gateway.core.acls import Acl, Pattern, PatternType, Permission
from gateway.log import logger
from gateway.settings.stored_rows import StoredRows, Value
from ledger.ports.metadata import MetadataStore

ROOT = "/gateway/acls"
_STEP_ROWS = 50  # decoded between two pauses


class StoredAcls:
    """The ACLs of the cluster, as an `Authorizer`. Call `load` once before, and `close` after."""

    def __init__(self, store: MetadataStore, authorization: Authorization) -> None:
        self._rows = StoredRows(store, ROOT, "ACLs")
        self._rules = AclRules(
            super_users=authorization.super_users, allow_everyone=authorization.allow_everyone
        )
        # The rows and their ACLs in `_rules`, by key. A row that changed has another value.
        self._held: dict[str, _Held] = {}
        # The keys of rows whose ACLs a later release wrote. Each is logged once.
        self._foreign: set[str] = set()
        # True if rows may differ from `_held`. Set by the watch and by changes here, and cleared
        # by the next decision, so that a burst of changes costs one look at all rows.
        self._stale = True
        self._rows.on_changed.append(self._on_changed)
        self.load = self._rows.load
        self.close = self._rows.close

    def configure(self, authorization: Authorization) -> None:
        """Decide by these super users from now on, and by this default."""
        self._rules = AclRules(
            list(self._rules),
            super_users=authorization.super_users,
            allow_everyone=authorization.allow_everyone,
        )
        self._stale = True  # whether rows could be read is looked up again

    def _on_changed(self) -> None:
        self._stale = True

    def rules(self) -> AclRules:
        """Return the present rules."""
        if self._stale:
            self._stale = False
            self._refresh()
        return self._rules

    @property
    def unreadable(self) -> bool:
        """True while a row cannot be read: then everything is denied but to super users."""
        return self._rows.unreadable or bool(self._foreign)

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether the principal at this address may do it."""
        return self.rules().allows(principal, host, operation, resource)

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether the principal may do it on at least one resource of a type."""
        return self.rules().allows_any(principal, host, operation, kind)

    def decide(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> Decision:
        """Return the decision with the rule that decided."""
        return self.rules().decide(principal, host, operation, resource)

    def has(self, acl: Acl) -> bool:
        """Return whether an ACL is stored, as far as this gateway has read."""
        return acl in self.rules()

    def all(self) -> list[Acl]:
        """Return those that are stored, as far as this gateway has read, in no order."""
        return list(self.rules())

    def by_pattern(self) -> list[frozenset[Acl]]:
        """Return the ACLs as they are now, those of one pattern together, in no order."""
        self.rules()  # reads what changed
        return [held.acls for held in self._held.values()]

    async def all_now(self) -> list[Acl]:
        """Return the ACLs that the store has now, sorted. Raises LedgerError.

        Other tasks run meanwhile.
        """
        rows: list[list[Acl]] = []
        for number, (key, value) in enumerate((await self._rows.read_now()).items(), 1):
            acls = sorted(_decode(key, value) or ())
            if acls:
                rows.append(acls)  # all of one pattern
            if number % _STEP_ROWS == 0:
                await asyncio.sleep(0)
        rows.sort(key=lambda acls: acls[0].pattern)
        return [acl for acls in rows for acl in acls]

    async def add(self, pattern: Pattern, acls: Iterable[Acl]) -> None:
        """Add ACLs of one pattern. Raises TableFull and LedgerError."""
        added = {_entry_of(acl) for acl in acls}
        await self._rows.change(_key_of(pattern), lambda value: _value(_entries(value) | added))

    async def remove(self, pattern: Pattern, acls: Iterable[Acl]) -> None:
        """Remove ACLs of one pattern. Raises LedgerError."""
        removed = {_entry_of(acl) for acl in acls}
        await self._rows.change(_key_of(pattern), lambda value: _value(_entries(value) - removed))

    def _refresh(self) -> None:
        rows = dict(self._rows.items())
        for key in self._held.keys() - rows.keys():
            self._hold(key, {}, [])
            del self._held[key]
        for key, value in rows.items():
            held = self._held.get(key)
            if held is None or held.value is not value:
                self._hold(key, value, _decode(key, value))
        self._rules.set_unreadable(self.unreadable)

    def _hold(self, key: str, value: Value, acls: list[Acl] | None) -> None:
        """Put the ACLs of a row in place of its former ones. None are those of a later release."""
        if acls is None and key not in self._foreign:
            logger().error("an ACL is of a later release; only super users are served")
            self._foreign.add(key)
        elif acls is not None:
            self._foreign.discard(key)
        held = self._held.get(key)
        old = frozenset[Acl]() if held is None else held.acls
        new = frozenset(acls or ())
        for acl in new - old:
            self._rules.add(acl)
        for acl in old - new:
            self._rules.remove(acl)
        self._held[key] = _Held(value, new)


class _Held(NamedTuple):
    """A row as this gateway last looked at it, and its ACLs in the rules."""

    value: Value
    acls: frozenset[Acl]


_Entry = tuple[str, str, str, str]  # principal, host, operation, permission


def _key_of(pattern: Pattern) -> str:
    return json.dumps([pattern.kind.value, pattern.type.value, pattern.name])


def _entry_of(acl: Acl) -> _Entry:
    return acl.principal, acl.host, acl.operation.value, acl.permission.value


def _entries(value: Value | None) -> set[_Entry]:
    rows: list[Any] = [] if value is None else value["acls"]
    return {cast("_Entry", tuple(row)) for row in rows}


def _value(entries: set[_Entry]) -> Value | None:
    return {"acls": sorted(map(list, entries))} if entries else None


def _decode(key: str, value: Value) -> list[Acl] | None:
    """Return the ACLs of a row, or None if it has words that this release lacks."""
    try:
        kind, pattern_type, name = json.loads(key)
        pattern = Pattern(ResourceType(kind), str(name), PatternType(pattern_type))
        return [
            Acl(pattern, principal, host, Operation(operation), Permission(permission))
            for principal, host, operation, permission in _entries(value)
        ]
    except (KeyError, TypeError, ValueError):
        return None
