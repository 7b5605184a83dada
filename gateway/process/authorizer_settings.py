"""The settings of the authorizer: their rows, and the configuration that they make."""

from __future__ import annotations

from typing import Final

from gateway.config import STANDARD, Authorization
from ledger.command_line.settings import KafkaKey, Setting, Settings

KAFKA_CLASS: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The class that is the authorizer `standard` in Kafka."""

_NONE: Final = "none"
_PRINCIPALS_MAX: Final = 1_000
_PRINCIPAL_CHARACTERS_MAX: Final = 1_000


def _authorizer(value: object) -> str:
    if value in (STANDARD, KAFKA_CLASS):
        return STANDARD
    if value in ("", _NONE):
        return _NONE
    raise ValueError(f"must be {_NONE}, {STANDARD}, or {KAFKA_CLASS}, which means the same")


def _principals(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be principals, such as User:admin;User:ops")
    found = [each.strip() for each in value.split(";") if each.strip()]
    if len(found) > _PRINCIPALS_MAX:
        raise ValueError(f"has {len(found)} principals; at most {_PRINCIPALS_MAX} are possible")
    for each in found:
        kind, colon, name = each.partition(":")
        if not kind or not colon or not name:
            raise ValueError(
                f"{each[:100]}: must be a type and a name, such as User:admin; semicolons are "
                "between principals"
            )
        if len(each) > _PRINCIPAL_CHARACTERS_MAX:
            raise ValueError(f"has a principal of {len(each)} characters")
    return ";".join(found)


def authorizer_rows() -> list[Setting]:
    """Return the rows of the authorizer."""
    return [
        Setting(
            name="authorizer",
            kind="NAME",
            parse=_authorizer,
            default=_NONE,
            kafka=(KafkaKey("authorizer.class.name"),),
            help="standard: ACLs decide what a client may do; none: every client may do everything."
            " Set it on all gateways of a cluster.",
        ),
        Setting(
            name="super-users",
            kind="PRINCIPALS",
            parse=_principals,
            shown="none",
            kafka=(KafkaKey("super.users"),),
            help="Principals that may do everything, with semicolons between them, such as "
            "User:admin;User:ops.",
        ),
        Setting(
            name="allow-everyone-if-no-acl-found",
            default=False,
            kafka=(KafkaKey("allow.everyone.if.no.acl.found"),),
            help="Let every client use a resource that no ACL matches.",
        ),
    ]


def authorization_of(settings: Settings) -> Authorization:
    """Return the configuration of the authorizer, as the settings make it."""
    authorizer = settings["authorizer"]
    return Authorization(
        authorizer="" if authorizer == _NONE else authorizer,
        super_users=tuple(each for each in (settings["super-users"] or "").split(";") if each),
        allow_everyone=settings["allow-everyone-if-no-acl-found"],
    )
