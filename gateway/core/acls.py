"""ACLs as Kafka has them: their fields, the numbers of its protocol, checks and filters. Pure.

Source: Kafka, AclBinding, AclBindingFilter, ResourcePatternFilter and AclControlManager.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from gateway.access import CLUSTER, Operation, ResourceType
from gateway.core.shown_text import shown

WILDCARD: Final = "*"
"""The name of a LITERAL pattern that matches every resource, and the host that matches all."""

ANYONE: Final = "User:*"
"""The principal of an ACL for everyone."""

CHANGED_MAX: Final = 10_000
"""ACLs that one request may add or remove. Source: Kafka, MAX_RECORDS_PER_USER_OP."""

TEXT_CHARACTERS_MAX: Final = 1_000
"""Characters of the principal or of the host of an ACL, and of the name of its resource.

Kafka takes up to 32,767. Nodes of the metadata store are smaller than a few of those.
"""


class PatternType(StrEnum):
    """How the name of an ACL matches names of resources."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Permission(StrEnum):
    """What an ACL does to what it matches."""

    DENY = "DENY"
    ALLOW = "ALLOW"


class Pattern(NamedTuple):
    """The resources of an ACL."""

    kind: ResourceType
    name: str
    type: PatternType

    def __str__(self) -> str:
        return f"{self.kind}:{self.type}:{self.name}"


class Acl(NamedTuple):
    """One ACL: a principal at a host is allowed or denied an operation on the resources."""

    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return (
            f"{self.permission} {self.operation} to {self.principal} "
            f"from host {self.host} on {self.pattern}"
        )


class Code(IntEnum):
    """The numbers that each enum of Kafka's ACLs begins with."""

    ANY = 1
    MATCH = 2  # of types of patterns only


# By number, as in Kafka's protocol.
OPERATIONS: Final = dict(enumerate(Operation, 2))
RESOURCE_TYPES: Final = dict(enumerate(ResourceType, 2))
PATTERN_TYPES: Final = {3: PatternType.LITERAL, 4: PatternType.PREFIXED}
PERMISSIONS: Final = {2: Permission.DENY, 3: Permission.ALLOW}

CODE_OF: Final[dict[StrEnum, int]] = {
    value: code
    for table in (OPERATIONS, RESOURCE_TYPES, PATTERN_TYPES, PERMISSIONS)
    for code, value in table.items()
}
"""The number of each operation, type of resource or pattern, and permission."""


class AclRefused(Exception):
    """An ACL or a filter that Kafka refuses with INVALID_REQUEST. The text is Kafka's."""


class Created(NamedTuple):
    """An ACL of a CreateAcls request, before it is checked."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def means_any(self) -> bool:
        """True if an element is ANY or MATCH. Kafka fails the whole request of such an ACL."""
        some = (Code.ANY, Code.MATCH)
        if self.pattern_type in some:
            return True
        return Code.ANY in (self.resource_type, self.operation, self.permission)

    def checked(self) -> Acl:
        """Return the ACL. Raises AclRefused, after checks in Kafka's order."""
        if self.resource_type == CODE_OF[ResourceType.CLUSTER] and self.name != CLUSTER.name:
            raise AclRefused(f"The only valid name for the CLUSTER resource is {CLUSTER.name}")
        if not self.name:
            raise AclRefused("Invalid empty resource name")
        kind = RESOURCE_TYPES.get(self.resource_type)
        if kind is None:
            raise AclRefused("Invalid resourceType UNKNOWN")
        pattern_type = PATTERN_TYPES.get(self.pattern_type)
        if pattern_type is None:
            raise AclRefused("Invalid patternType UNKNOWN")
        operation = OPERATIONS.get(self.operation)
        if operation is None:
            raise AclRefused("Invalid operation UNKNOWN")
        permission = PERMISSIONS.get(self.permission)
        if permission is None:
            raise AclRefused("Invalid permissionType UNKNOWN")
        if ":" not in self.principal:
            raise AclRefused(
                f"Could not parse principal from `{shown(self.principal)}` (no colon is "
                "present separating the principal type from the principal name)"
            )
        for text in (self.name, self.principal, self.host):
            if len(text) > TEXT_CHARACTERS_MAX:
                raise AclRefused(
                    f"An ACL has a text of {len(text)} characters; {TEXT_CHARACTERS_MAX} are "
                    "possible"
                )
        return Acl(
            Pattern(kind, self.name, pattern_type),
            self.principal,
            self.host,
            operation,
            permission,
        )


class AclFilter(NamedTuple):
    """A filter of DescribeAcls or DeleteAcls. A text that is None matches everything."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def check(self) -> None:
        """Raise AclRefused for a number that is not Kafka's, as its controller does."""
        patterns = (*PATTERN_TYPES, Code.ANY, Code.MATCH)
        if self.resource_type not in (*RESOURCE_TYPES, Code.ANY):
            raise AclRefused("Unknown patternFilter.")
        if self.pattern_type not in patterns:
            raise AclRefused("Unknown patternFilter.")
        if self.operation not in (*OPERATIONS, Code.ANY):
            raise AclRefused("Unknown entryFilter.")
        if self.permission not in (*PERMISSIONS, Code.ANY):
            raise AclRefused("Unknown entryFilter.")

    def matches_pattern(self, pattern: Pattern) -> bool:
        """Return whether the filter matches the resources of an ACL."""
        if self.resource_type not in (Code.ANY, CODE_OF[pattern.kind]):
            return False
        code = CODE_OF[pattern.type]
        if self.pattern_type not in (Code.ANY, Code.MATCH, code):
            return False
        if self.name is None:
            return True
        if self.pattern_type in (Code.ANY, code):
            return self.name == pattern.name
        if pattern.type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def matches_entry(self, acl: Acl) -> bool:
        """Return whether the filter matches the rest of an ACL."""
        if self.principal is not None and self.principal != acl.principal:
            return False
        if self.host is not None and self.host != acl.host:
            return False
        if self.operation not in (Code.ANY, CODE_OF[acl.operation]):
            return False
        return self.permission in (Code.ANY, CODE_OF[acl.permission])

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter matches an ACL."""
        return self.matches_pattern(acl.pattern) and self.matches_entry(acl)
