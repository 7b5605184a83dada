# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The identities of a process at ZooKeeper, the ACLs of what it creates, and its TLS.

Identities are those of ZooKeeper's digest scheme: a name, and the SHA-1 of name and password; or
users of SASL, by DIGEST-MD5. An ACL names the cluster's identity, with all rights, and the identity
that may only read.
Source: ZooKeeper, `DigestAuthenticationProvider.java`, whose default algorithm is SHA-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kazoo.protocol import serialization as wire
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from ledger.adapters.zookeeper.zookeeper_tls import ZooKeeperTls
from ledger.command_line.secret_values import SecretFault, resolve, resolve_line
from ledger.command_line.zookeeper_settings import (
    IDENTITIES_MAX,
    SetAcl,
    ZooKeeperSecurity,
    identities_in,
)

DIGEST: Final = "digest"
SASL: Final = "sasl"
WORLD: Final = "world"


class SealedAuth(wire.Auth):
    """The request by which a connection proves an identity. Its text has no secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Auth(hidden)"


class SealedSasl(wire.SASL):
    """A step of the login by SASL. Its text has no proof of a password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SASL(hidden)"


class Identity(NamedTuple):
    """A name and a password of the digest scheme, or of SASL."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, hidden)"

    @property
    def request(self) -> SealedAuth:
        return SealedAuth(0, DIGEST, f"{self.name}:{self.password}")

    @property
    def acl_id(self) -> Id:
        return Id(DIGEST, make_digest_acl_credential(self.name, self.password))


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How a process connects to ZooKeeper. The default is plain text without an identity."""

    identity: Identity | None = None
    # Proved too: of a password that is being changed. They have no right on new nodes, but on the
    # way from the digest scheme to SASL.
    others: tuple[Identity, ...] = ()
    reader: Identity | None = None  # may read what this process creates
    set_acl: SetAcl = SetAcl.OFF  # without an identity, nodes are open
    tls: ZooKeeperTls | None = None
    # Paths, below the root of the store, of nodes with secrets: the reader sees neither them nor
    # those below.
    secret_paths: tuple[str, ...] = ()
    # `identity` and `reader` are users of SASL; `others` are of the digest scheme nevertheless.
    sasl: bool = False
    # Computed from the others: the ACLs of nodes with and without secrets.
    _closed: tuple[ACL, ...] = field(init=False, repr=False)
    _secret: tuple[ACL, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert self.identity is not None or self.set_acl is SetAcl.OFF
        secret: list[ACL] = []
        if self.identity is not None:
            secret.append(ACL(Permissions.ALL, self._id_of(self.identity)))
        readers = [] if self.reader is None else [ACL(Permissions.READ, self._id_of(self.reader))]
        if self.sasl and self.others:
            # On the way to SASL: processes that have not changed yet prove only these.
            secret += [ACL(Permissions.ALL, each.acl_id) for each in self.others]
            if self.reader is not None:
                readers.append(ACL(Permissions.READ, self.reader.acl_id))
        object.__setattr__(self, "_secret", tuple(secret))
        object.__setattr__(self, "_closed", (*secret, *readers))

    @property
    def proved(self) -> tuple[Identity, ...]:
        """The identities of the digest scheme that each connection proves."""
        own = () if self.identity is None or self.sasl else (self.identity,)
        return (*own, *self.others)

    @property
    def user(self) -> Identity | None:
        """The user of SASL as which each connection authenticates, or None."""
        return self.identity if self.sasl else None

    def _id_of(self, identity: Identity) -> Id:
        return Id(SASL, identity.name) if self.sasl else identity.acl_id

    @property
    def checks_nodes(self) -> bool:
        """True if a server must not start while a node is open."""
        return self.set_acl is SetAcl.REQUIRED

    def acl_of_created(self, path: str) -> Sequence[ACL]:
        """Return the ACL of a node that this process creates at a path below the root."""
        return OPEN_ACL_UNSAFE if self.set_acl is SetAcl.OFF else self.closed_acl(path)

    def closed_acl(self, path: str) -> Sequence[ACL]:
        """Return the ACL that the node at a path below the root has once the tree is closed."""
        assert self.identity is not None
        for secret in self.secret_paths:
            if path == secret or path.startswith(f"{secret}/"):
                return self._secret
        return self._closed


OPEN: Final = ZooKeeperAccess()
"""Plain text without an identity."""


def read_access(security: ZooKeeperSecurity, secret_paths: tuple[str, ...] = ()) -> ZooKeeperAccess:
    """Return the access that these settings name, with their secrets. Raises SecretFault."""
    identity, *others = _identities(security.auth, IDENTITIES_MAX) or [None]
    tls = None
    if security.truststore is not None:
        password = security.keystore_password
        tls = ZooKeeperTls(
            str(security.truststore.absolute()),
            str(security.keystore.absolute()) if security.keystore else "",
            resolve_line(password) if password else "",
        )
    return ZooKeeperAccess(
        identity=identity,
        others=tuple(each for each in others if each is not None),
        reader=next(iter(_identities(security.read_auth, 1)), None),
        set_acl=SetAcl.OFF if identity is None else security.set_acl,
        tls=tls,
        secret_paths=secret_paths,
        sasl=security.sasl and identity is not None,
    )


def _identities(reference: str, most: int) -> list[Identity]:
    if not reference:
        return []
    try:
        return [Identity(*each) for each in identities_in(resolve(reference), most)]
    except ValueError as fault:
        raise SecretFault(f"{reference}: {fault}") from None
