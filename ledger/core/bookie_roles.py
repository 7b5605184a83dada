"""The roles of peers in the storage tier, and the operations of a bookie that each role may use.

Pure data and two functions: `PERMITTED` is the whole policy. The table in docs/security.md is made
from it. A certificate has a role if one of its alternative names is the URI
`ledger-gateway:role:NAME`; it may have several roles, whose rights add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, StrEnum
from typing import Final

URI_PREFIX: Final = "ledger-gateway:role:"


class Role(StrEnum):
    """A role that a certificate names."""

    GATEWAY = "gateway"  # writes ledgers, and recovers those of others
    BOOKIE = "bookie"  # serves entries; clients accept no other server
    AUDITOR = "auditor"  # repairs ledgers; also the repair commands of operators
    READER = "reader"  # reads: Spark, jobs and commands that change nothing

    @property
    def uri(self) -> str:
        """Return the alternative name by which a certificate has this role."""
        return URI_PREFIX + self.value


class Operation(Enum):
    """An operation of a bookie: its name on the wire, and its effect."""

    INFO = ("HELLO, PING, Info", "address a bookie; its id and largest entry")
    READ = ("READ", "read one entry")
    READ_MANY = ("READ_MANY", "read consecutive entries")
    WAIT_LAC = ("WAIT_LAC", "wait for the next entry")
    READ_LAC = ("ReadLac", "read the LAC")
    LIST_ENTRIES = ("ListEntries", "list the entries of a ledger")
    STATS = ("Stats", "read statistics")
    LOCATE = ("Locate", "find the place of an entry on disk")
    ADD = ("ADDS", "add an entry")
    RECOVERY_ADD = ("ADDS with the recovery flag", "add to a fenced ledger")
    WRITE_LAC = ("WriteLac", "store an explicit LAC")
    FENCE = ("FENCE_AND_READ", "fence a ledger, then read")
    FENCE_MANY = ("FenceMany", "fence up to 100 ledgers")
    END_LIMBO = ("EndLimbo", "declare the copies of a ledger complete")

    @property
    def wire_name(self) -> str:
        """Return its name in docs/formats/bookie-wire.md."""
        return self.value[0]

    @property
    def effect(self) -> str:
        """Return what it does, for people."""
        return self.value[1]


_ALL: Final = frozenset(Operation)
_READING: Final = frozenset(
    (
        *(Operation.INFO, Operation.READ, Operation.READ_MANY, Operation.WAIT_LAC),
        *(Operation.READ_LAC, Operation.LIST_ENTRIES, Operation.STATS, Operation.LOCATE),
    )
)
_TAKING_OVER: Final = frozenset((Operation.RECOVERY_ADD, Operation.FENCE, Operation.FENCE_MANY))

FOR_ALL: Final = frozenset((Operation.INFO,))
"""The operations of every peer with a certificate of the authority, also of one without a role."""

PERMITTED: Final[Mapping[Role, frozenset[Operation]]] = {
    Role.GATEWAY: _READING | _TAKING_OVER | {Operation.ADD, Operation.WRITE_LAC},
    Role.BOOKIE: FOR_ALL,
    Role.AUDITOR: _READING | _TAKING_OVER | {Operation.END_LIMBO},
    Role.READER: _READING,
}
"""The operations of each role."""


def permitted(roles: Iterable[Role] | None) -> frozenset[Operation]:
    """Return the operations of a peer with these roles.

    `roles` is None for a peer whose role is not checked: without TLS, or with roles turned off.
    """
    return _ALL if roles is None else FOR_ALL.union(*(PERMITTED[role] for role in roles))


def roles_named(uris: Iterable[str]) -> frozenset[Role]:
    """Return the roles that these alternative names of a certificate give it.

    A name is compared byte by byte. An unknown role is none: a later release may define it.
    """
    return frozenset(role for role in Role if role.uri in uris)


def table() -> Iterator[str]:
    """Yield the lines of the table in docs/security.md."""
    yield f"| operation | effect | {' | '.join(Role)} | no role |"
    yield f"|---|---|{'---|' * (len(Role) + 1)}"
    for each in Operation:
        marks = ["yes" if each in PERMITTED[role] else "-" for role in Role]
        marks.append("yes" if each in FOR_ALL else "-")
        yield f"| {each.wire_name} | {each.effect} | {' | '.join(marks)} |"
