"""How a process proves its identity at ZooKeeper, and by which TLS: the settings of all programs.

The names are Kafka's, as far as Kafka had them; `zookeeper.auth` and `zookeeper.read.auth` are
ours. A secret is only named here (`file:PATH` or `env:NAME`), and read at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ledger.command_line import units
from ledger.command_line.settings import KafkaKey, Setting, Settings


def unreachable(place: str, servers: str, error: Exception) -> str:
    """Return the line about a ZooKeeper that does not answer. `place` is where it was named."""
    hosts, _, _ = servers.partition("/")  # the error names them without the chroot
    reason = str(error).removeprefix(f"{hosts}: ")
    return f"{place}: {reason}; start ZooKeeper, or name servers of it that run"


class SetAcl(StrEnum):
    """The ACLs of nodes that a process creates, and whether it accepts open ones."""

    REQUIRED = "required"  # closed; a start with an open node is refused
    MIGRATE = "migrate"  # closed; open nodes are accepted, with a warning each hour
    OFF = "off"  # open, with a warning each hour


IDENTITIES_MAX: Final = 4
"""Most identities that a process proves."""

_BOOLEANS: Final = {"true": SetAcl.REQUIRED, "false": SetAcl.OFF}  # of Kafka's zookeeper.set.acl
_AUTH, _READ_AUTH, _SET_ACL = "zookeeper-auth", "zookeeper-read-auth", "zookeeper-set-acl"
_TLS: Final = "zookeeper-ssl-client-enable"
_TRUSTED: Final = "zookeeper-ssl-truststore-location"
_KEYS: Final = "zookeeper-ssl-keystore-location"
_KEY_PASSWORD: Final = "zookeeper-ssl-keystore-password"
_SASL: Final = "zookeeper-sasl-mechanism"
DIGEST_MD5: Final = "DIGEST-MD5"
_NO_SASL: Final = "none"


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """The identity of a process at ZooKeeper, and its TLS. Holds names of secrets, none itself."""

    # names the secret NAME:PASSWORD of this process; "": no identity. It may have further lines:
    # identities that are proved too, while a password is changed
    auth: str = ""
    read_auth: str = ""  # names that of the identity that may read; "": there is none
    set_acl: SetAcl = SetAcl.REQUIRED  # without `auth` it has no effect
    truststore: Path | None = None  # PEM file with CA certificates; None: plain text
    keystore: Path | None = None  # PEM file with the private key and the certificates
    keystore_password: str = ""  # names the passphrase of the private key
    sasl: bool = False  # the first identity is a user of SASL, proved by DIGEST-MD5

    @property
    def warning(self) -> str:
        """What to log each hour, or nothing."""
        if not self.auth or self.set_acl is SetAcl.REQUIRED:
            return ""
        state = "every client of ZooKeeper may change nodes that are open to world:anyone"
        if self.set_acl is SetAcl.OFF:
            return f"{state}, and this process creates such nodes (zookeeper-set-acl off)"
        return (
            f"{state}: run `gateway security zookeeper --apply`, then set zookeeper-set-acl to "
            "required"
        )


class SecurityFault(ValueError):
    """A value that cannot be used: a line that names its key and the fix, never a secret."""


def zookeeper_rows(*, kafka: bool = True) -> list[Setting]:
    """Return the rows of these settings; `kafka` are Kafka's keys beside our names."""
    rows = [
        _secret_row(_AUTH, "Identity of this process at ZooKeeper, NAME:PASSWORD"),
        _secret_row(
            _READ_AUTH,
            "Identity of commands and jobs that may only read what this process creates, "
            "NAME:PASSWORD",
        ),
        Setting(
            name=_SET_ACL,
            kind="MODE",
            parse=_set_acl,
            shown=f"{SetAcl.REQUIRED}, with --{_AUTH}",
            kafka=(KafkaKey("zookeeper.set.acl"),),
            help="required: create nodes for these identities alone, and do not start if any node "
            "is open to all; migrate: start nevertheless; off: create open nodes.",
        ),
        Setting(
            name=_SASL,
            kind="MECHANISM",
            parse=units.one_of(_NO_SASL, DIGEST_MD5),
            shown="ZooKeeper's digest scheme",
            help="DIGEST-MD5: prove the identity by SASL; nodes are for users of SASL with these "
            "names. none: ZooKeeper's digest scheme.",
        ),
        *_tls_rows(),
    ]
    return rows if kafka else [replace(row, kafka=()) for row in rows]


def _tls_rows() -> list[Setting]:
    return [
        Setting(
            name=_TLS,
            default=False,
            kafka=(KafkaKey("zookeeper.ssl.client.enable"),),
            help=f"Connect to ZooKeeper by TLS; needs --{_TRUSTED}. Its certificate must name the "
            "host of --zookeeper.",
        ),
        Setting(
            name=_TRUSTED,
            kind="FILE",
            parse=units.path,
            kafka=(KafkaKey("zookeeper.ssl.truststore.location"),),
            help="PEM file with the CA certificates that sign those of ZooKeeper.",
        ),
        Setting(
            name=_KEYS,
            kind="FILE",
            parse=units.path,
            kafka=(KafkaKey("zookeeper.ssl.keystore.location"),),
            help="PEM file with the private key and the certificates for ZooKeeper; only its owner "
            "may read it.",
        ),
        _secret_row(
            _KEY_PASSWORD, "Passphrase of that private key", "zookeeper.ssl.keystore.password"
        ),
    ]


def _secret_row(name: str, text: str, kafka: str = "") -> Setting:
    return Setting(
        name=name,
        kind="SECRET",
        parse=_reference,
        kafka=(KafkaKey(kafka),) if kafka else (),
        help=f"{text}: file:PATH or env:NAME.",
        reference=True,
    )


def _reference(value: object) -> str:
    from ledger.command_line.secret_values import parse_reference

    return parse_reference(value)


def _set_acl(value: object) -> SetAcl:
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    found = _BOOLEANS.get(text) or next((each for each in SetAcl if each == text), None)
    if found is None:
        raise ValueError(f"must be {units.listed(list(SetAcl))}")
    return found


def zookeeper_security(settings: Settings) -> ZooKeeperSecurity:
    """Return what the settings make. They must have no faults."""
    return security_of({row.name: settings[row.name] for row in zookeeper_rows()})


def security_of(values: Mapping[str, Any]) -> ZooKeeperSecurity:
    """Return what these values make, by the names of their settings."""
    tls = values.get(_TLS) or False
    return ZooKeeperSecurity(
        auth=values.get(_AUTH) or "",
        read_auth=values.get(_READ_AUTH) or "",
        set_acl=values.get(_SET_ACL) or SetAcl.REQUIRED,
        truststore=values.get(_TRUSTED) if tls else None,
        keystore=values.get(_KEYS) if tls else None,
        keystore_password=(values.get(_KEY_PASSWORD) or "") if tls else "",
        sasl=values.get(_SASL) == DIGEST_MD5,
    )


def zookeeper_faults(settings: Settings) -> Iterator[str]:
    """Yield the faults of these settings that need no network."""
    values = {row.name: settings[row.name] for row in zookeeper_rows()}
    if settings.faulty & values.keys():
        return
    for name, needed in _unmet(values):
        yield f"{settings.place(name)}: needs --{needed} too"
    for name in (_AUTH, _READ_AUTH, _KEYS, _KEY_PASSWORD, _TRUSTED):
        if values[name] and (fault := _fault_of(name, values[name])):
            yield f"{settings.place(name)}: {fault}"


def _unmet(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each setting that needs another one, with that."""
    for name in (_READ_AUTH, _SET_ACL, _SASL):
        if values.get(name) not in (None, "", _NO_SASL) and not values.get(_AUTH):
            yield name, _AUTH
    for name in (_TRUSTED, _KEYS, _KEY_PASSWORD):
        if values.get(name) and not values.get(_TLS):
            yield name, _TLS
    if values.get(_TLS) and not values.get(_TRUSTED):
        yield _TLS, _TRUSTED
    if values.get(_KEY_PASSWORD) and not values.get(_KEYS):
        yield _KEY_PASSWORD, _KEYS


def _fault_of(name: str, value: Any) -> str:
    """Return why a secret or a file cannot be read, or nothing."""
    from ledger.command_line.secret_values import (
        SecretFault,
        read_private,
        read_public,
        resolve,
        resolve_line,
    )

    try:
        if name == _TRUSTED:
            read_public(value)
        elif name == _KEYS:
            read_private(value)
        elif name == _KEY_PASSWORD:
            _ = resolve_line(value)
        else:
            _ = identities_in(resolve(value), most=1 if name == _READ_AUTH else IDENTITIES_MAX)
    except SecretFault as fault:
        return str(fault)
    except ValueError as fault:
        return f"the secret {fault}"
    return ""


def identities_in(secret: bytes, most: int = IDENTITIES_MAX) -> list[tuple[str, str]]:
    """Return the names and passwords of a secret, one NAME:PASSWORD in each line.

    Raises ValueError, without the secret.
    """
    form = "must be NAME:PASSWORD in one line"
    form += "" if most == 1 else f", or in up to {most}: the first is that of new nodes"
    try:
        lines = secret.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    found = [line.removesuffix("\r").partition(":") for line in lines]
    if len(found) > most or not all(name and password for name, _, password in found):
        raise ValueError(form)
    return [(name, password) for name, _, password in found]


def security_of_keys(keys: Mapping[str, str]) -> ZooKeeperSecurity:
    """Return what these keys make, such as `zookeeper.auth`. Raises SecurityFault.

    Other keys have no effect.
    """
    return _security_of_texts(keys, lambda row: row.name.replace("-", "."))


def security_of_variables(variables: Mapping[str, str]) -> ZooKeeperSecurity:
    """Return what variables such as GATEWAY_ZOOKEEPER_AUTH make. Raises SecurityFault."""
    return _security_of_texts(variables, lambda row: f"GATEWAY_{row.field.upper()}")


def _security_of_texts(
    texts: Mapping[str, str], name_of: Callable[[Setting], str]
) -> ZooKeeperSecurity:
    values: dict[str, Any] = {}
    names = {row.name: name_of(row) for row in zookeeper_rows()}
    for row in zookeeper_rows():
        written = texts.get(names[row.name], "").strip()
        if not written:
            continue
        try:
            values[row.name] = row.parse_text(written)
        except ValueError as fault:
            raise SecurityFault(f"{names[row.name]}: {fault}") from None
    for name, needed in _unmet(values):
        raise SecurityFault(f"{names[name]}: needs {names[needed]} too")
    return security_of(values)
