"""Decides by ACLs whether a principal may do an operation on a resource. Pure.

    super user ─▶ a DENY that matches ─▶ an ALLOW that matches ─▶ no ACL for the resource ─▶ DENY

Each resource of ACLs has a bucket, whose rules are found by principal, host and operation. So a
decision looks at few buckets: those of the name, of `*`, and of each length of a PREFIXED name. The
newest decisions are kept until an ACL changes.
Source: Kafka, StandardAuthorizerData and Authorizer.authorizeByResourceType.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from gateway.access import Operation, Resource, ResourceType
from gateway.core.acls import ANYONE, WILDCARD, Acl, Pattern, PatternType, Permission

DECISIONS_MAX: Final = 20_000
"""Decisions that are kept. One more empties the table, because clients choose the names."""

NAME_CHARACTERS_MAX: Final = 1_000
"""Characters of a resource's name in a decision that is kept."""

_IMPLIES: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""The operations that imply another one, if an ACL allows them."""

_ALLOWING: Final = {
    operation: (operation, Operation.ALL, *_IMPLIES.get(operation, ())) for operation in Operation
}
"""The operations of an ACL that allow each operation."""

_HARD_CODED: Final = "hardcode"
"""The name by which Kafka asks for super users and wildcards, before it looks at single ACLs."""


class Decision(NamedTuple):
    """Whether something is allowed, and the rule that decided."""

    allowed: bool
    rule: str
    """`SuperUser`, `MatchingAcl`, `DefaultAllow` or `DefaultDeny`, or `Unreadable`."""
    acl: Acl | None = None  # the ACL of `MatchingAcl`


_SUPER_USER: Final = Decision(True, "SuperUser")
_DEFAULT_ALLOW: Final = Decision(True, "DefaultAllow")
_DEFAULT_DENY: Final = Decision(False, "DefaultDeny")
_UNREADABLE: Final = Decision(False, "Unreadable")

_Key = tuple[str, str, str]  # principal, host and operation


class _Bucket:
    """The ACLs of one pattern."""

    __slots__ = ("allow", "deny")

    def __init__(self) -> None:
        self.deny: dict[_Key, Acl] = {}
        self.allow: dict[_Key, Acl] = {}

    def table(self, acl: Acl) -> dict[_Key, Acl]:
        return self.deny if acl.permission is Permission.DENY else self.allow


class _Kind:
    """The buckets of one type of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Bucket] = {}
        self.prefixed: dict[str, _Bucket] = {}
        # The lengths of all names in `prefixed`, the longest first.
        self.lengths: list[int] = []

    def named(self, pattern_type: PatternType) -> dict[str, _Bucket]:
        return self.prefixed if pattern_type is PatternType.PREFIXED else self.literal

    def measure(self) -> None:
        """Note the lengths again, after a bucket of `prefixed` was added or removed."""
        self.lengths = sorted({len(name) for name in self.prefixed}, reverse=True)

    def matching(self, name: str) -> Iterator[_Bucket]:
        """Yield the buckets whose pattern matches a name, the most specific first."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        size = len(name)
        for length in self.lengths:
            if length <= size:
                found = self.prefixed.get(name[:length])
                if found is not None:
                    yield found
        if name != WILDCARD:
            found = self.literal.get(WILDCARD)
            if found is not None:
                yield found


class AclRules:
    """The ACLs of a cluster and the settings of its authorizer, as an `Authorizer`.

    `add` and `remove` change it. Each change empties the table of decisions.
    """

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Iterable[str] = (),
        allow_everyone: bool = False,
    ) -> None:
        """Create the rules. `allow_everyone` decides on resources that no ACL matches."""
        self._super_users = frozenset(super_users)
        self._nothing = _DEFAULT_ALLOW if allow_everyone else _DEFAULT_DENY
        self._kinds = {kind: _Kind() for kind in ResourceType}
        # The number of ACLs in all buckets.
        self._count = 0
        # The newest decisions, by question. Emptied by each change, and at `DECISIONS_MAX`.
        self._decided: dict[tuple[str, str, str, Resource], Decision] = {}
        # The same for questions about any resource of a type.
        self._decided_any: dict[tuple[str, str, str, str], bool] = {}
        # True while some ACLs cannot be read: then only super users may do anything.
        self._unreadable = False
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Acl]:
        for kind in self._kinds.values():
            for buckets in (kind.literal, kind.prefixed):
                for bucket in buckets.values():
                    yield from bucket.deny.values()
                    yield from bucket.allow.values()

    def __contains__(self, acl: Acl) -> bool:
        buckets = self._kinds[acl.pattern.kind].named(acl.pattern.type)
        bucket = buckets.get(acl.pattern.name)
        return bucket is not None and _key_of(acl) in bucket.table(acl)

    def add(self, acl: Acl) -> None:
        """Add an ACL. Nothing changes if it is there."""
        kind = self._kinds[acl.pattern.kind]
        named, name = kind.named(acl.pattern.type), acl.pattern.name
        bucket = named.get(name)
        if bucket is None:
            bucket = named[name] = _Bucket()
            if acl.pattern.type is PatternType.PREFIXED:
                kind.measure()
        table, key = bucket.table(acl), _key_of(acl)
        self._count += key not in table
        table[key] = acl
        self._forget()

    def remove(self, acl: Acl) -> None:
        """Remove an ACL. Nothing changes if it is not there."""
        kind = self._kinds[acl.pattern.kind]
        named, name = kind.named(acl.pattern.type), acl.pattern.name
        bucket = named.get(name)
        if bucket is None:
            return
        table, key = bucket.table(acl), _key_of(acl)
        if table.get(key) == acl:
            del table[key]
            self._count -= 1
        if not bucket.deny and not bucket.allow:
            del named[name]
            if acl.pattern.type is PatternType.PREFIXED:
                kind.measure()
        self._forget()

    def set_unreadable(self, unreadable: bool) -> None:
        """Deny everything to all but super users, while some ACLs cannot be read."""
        if unreadable != self._unreadable:
            self._unreadable = unreadable
            self._forget()

    def _forget(self) -> None:
        self._decided.clear()
        self._decided_any.clear()

    # -- decisions ----------------------------------------------------------------------------

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether the principal at this address may do it."""
        found = self._decided.get((principal, host, operation, resource))
        if found is None:
            found = self.decide(principal, host, operation, resource)
            if len(resource.name) <= NAME_CHARACTERS_MAX:
                if len(self._decided) >= DECISIONS_MAX:
                    self._decided.clear()
                self._decided[principal, host, operation, resource] = found
        return found.allowed

    def decide(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> Decision:
        """Return the decision with its rule: of several that match, one of the most specific."""
        if principal in self._super_users:
            return _SUPER_USER
        if self._unreadable:
            return _UNREADABLE
        buckets = list(self._kinds[resource.kind].matching(resource.name))
        hosts = hosts_of(host)
        principals = (principal, ANYONE)
        for bucket in buckets:
            acl = _first(bucket.deny, principals, hosts, (operation, Operation.ALL))
            if acl is not None:
                return Decision(False, "MatchingAcl", acl)
        for bucket in buckets:
            acl = _first(bucket.allow, principals, hosts, _ALLOWING[operation])
            if acl is not None:
                return Decision(True, "MatchingAcl", acl)
        return _DEFAULT_DENY if buckets else self._nothing

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether the principal may do it on at least one resource of a type.

        As in Kafka, operations that imply it do not count here.
        """
        key = (principal, host, operation, kind)
        found = self._decided_any.get(key)
        if found is None:
            found = self.allows(principal, host, operation, Resource(kind, _HARD_CODED))
            found = found or self._finds_any(principal, host, operation, kind)
            if len(self._decided_any) >= DECISIONS_MAX:
                self._decided_any.clear()
            self._decided_any[key] = found
        return found

    def _finds_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether some pattern is allowed, and no DENY covers all of it."""
        if self._unreadable:
            return False
        asked = (principal, ANYONE), hosts_of(host), (operation, Operation.ALL)
        buckets = self._kinds[kind]
        literal, prefixed = buckets.literal, buckets.prefixed
        denied = {name for name, each in literal.items() if _first(each.deny, *asked)}
        if WILDCARD in denied:
            return False
        prefixes = {name for name, each in prefixed.items() if _first(each.deny, *asked)}
        lengths = sorted({len(name) for name in prefixes})
        for named, exact in ((literal, denied), (prefixed, frozenset[str]())):
            for name, bucket in named.items():
                if not _first(bucket.allow, *asked) or name in exact:
                    continue
                if named is literal and name == WILDCARD:
                    return True
                if not any(name[:length] in prefixes for length in lengths if length <= len(name)):
                    return True
        return False


def _first(
    table: dict[_Key, Acl],
    principals: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[Operation, ...],
) -> Acl | None:
    if not table:
        return None
    for key in product(principals, hosts, operations):
        found = table.get(key)
        if found is not None:
            return found
    return None


def _key_of(acl: Acl) -> _Key:
    return acl.principal, acl.host, acl.operation


def hosts_of(address: str) -> tuple[str, ...]:
    """Return the hosts of ACLs that match an address: its forms, and `*`.

    Kafka's ACLs have IPv6 addresses as Java prints them: `0:0:0:0:0:0:0:1`. The form `::1` matches
    too. An IPv4 address that an IPv6 socket reports is taken for what it is.
    """
    if ":" not in address:
        return address, WILDCARD
    from ipaddress import IPv6Address  # few clients have such an address

    plain, percent, scope = address.partition("%")
    try:
        found = IPv6Address(plain)
    except ValueError:
        return address, WILDCARD
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped), WILDCARD
    of_java = ":".join(f"{int(group, 16):x}" for group in found.exploded.split(":"))
    return f"{found}{percent}{scope}", f"{of_java}{percent}{scope}", WILDCARD


def grouped(acls: Iterable[Acl]) -> dict[Pattern, list[Acl]]:
    """Return ACLs by their pattern, in the order of the first ACL of each."""
    found: dict[Pattern, list[Acl]] = {}
    for acl in acls:
        found.setdefault(acl.pattern, []).append(acl)
    return found
