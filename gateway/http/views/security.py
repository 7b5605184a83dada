"""The page of security, with the first rows of users, ACLs, quotas and audit lines.

Everything is in the memory of this gateway, which follows the changes of others. A part that the
principal may not see is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.access import CLUSTER, Operation
from gateway.core.sasl_session import ONLY_IN_TLS
from gateway.http.asking import may_on
from gateway.http.views.audit import audit_lines
from gateway.http.views.security_lists import FIRST, acl_rows, quota_rows, user_rows
from gateway.security.exposed_listeners import exposed_places

if TYPE_CHECKING:
    from gateway.config import Listener
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

_NAMED_MAX: Final = 10  # gateways that a warning names


async def security(asked: Asked, site: Site) -> Json:
    """Return the authorizer, the listeners, warnings, and the first rows of each list.

    Listeners and quotas need DESCRIBE_CONFIGS on the cluster too, and audit lines ALTER.
    """
    sees_configs = may_on(site, asked, Operation.DESCRIBE_CONFIGS, CLUSTER)
    sees_audit = may_on(site, asked, Operation.ALTER, CLUSTER)
    return {
        "node_id": site.ctx.config.node_id,
        "authorizer": site.ctx.config.authorization.authorizer or None,
        "warnings": [*_warnings(site), *(_exposures(site) if sees_configs else ())],
        "left_out": _left_out(asked, sees_configs, sees_audit),
        "listeners": _listeners(site) if sees_configs else None,
        "users": await user_rows(site, FIRST),
        "acls": await acl_rows(site, FIRST),
        "quotas": await quota_rows(site, FIRST) if sees_configs else None,
        "audit": await audit_lines(site, "", None, FIRST.rows) if sees_audit else None,
    }


def _left_out(asked: Asked, sees_configs: bool, sees_audit: bool) -> str | None:
    """Return what the principal may not see, with the rights that it lacks."""
    parts: list[str] = []
    if not sees_configs:
        parts.append("Listeners, quotas and warnings about listeners need DESCRIBE_CONFIGS")
    if not sees_audit:
        parts.append("Lines of the audit log need ALTER")
    if not parts:
        return None
    return f"{'. '.join(parts)} on the cluster, which {asked.principal} may not do."


def _listeners(site: Site) -> list[Json]:
    config = site.ctx.config
    return [
        {
            "listener": each.name,
            "address": _address(each),
            "protocol": each.protocol,
            "mechanisms": _mechanisms(site, each),
            "client_certificates": config.tls_of(each).client_auth if each.has_tls else None,
        }
        for each in site.ctx.listeners.values()
    ]


def _address(listener: Listener) -> str:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{host}:{listener.port}"


def _mechanisms(site: Site, listener: Listener) -> list[str] | None:
    """Return the mechanisms that clients of a listener are offered, None without SASL."""
    if not listener.has_sasl:
        return None
    enabled = site.ctx.config.sasl_of(listener).mechanisms
    return [each for each in enabled if listener.has_tls or each not in ONLY_IN_TLS]


def _warnings(site: Site) -> list[str]:
    found: list[str] = []
    ctx = site.ctx
    differing = _differing(site)
    if differing:
        has, have = ("an authorizer", "none") if ctx.authorizer else ("none", "an authorizer")
        found.append(
            f"Gateways differ in their authorizer: gateway {ctx.cluster.node_id} has {has}, "
            f"{differing} {have}. Those without one let clients do everything. Set authorizer on "
            "all gateways of the cluster."
        )
    if ctx.acls is not None and ctx.acls.unreadable:
        found.append(
            "An ACL cannot be read, so only super users are served. The log has the reason."
        )
    return found


def _differing(site: Site) -> str:
    """Return the other gateways that differ from this one in their authorizer, as words."""
    cluster = site.ctx.cluster
    authorizes = site.ctx.authorizer is not None
    others = [
        each.node_id
        for each in cluster.members()
        if each.node_id != cluster.node_id and each.authorizes != authorizes
    ]
    if not others:
        return ""
    more = f" and {len(others) - _NAMED_MAX} others" if len(others) > _NAMED_MAX else ""
    verb = "has" if len(others) == 1 else "have"
    return f"{', '.join(map(str, others[:_NAMED_MAX]))}{more} {verb}"


def _exposures(site: Site) -> list[str]:
    places = exposed_places(site.ctx.config, site.ctx.listeners.values())
    return [
        f"Other machines can reach {each} without TLS and authentication (--allow-insecure)."
        for each in places
    ]


def command(asked: Asked) -> str:
    """Return the commands that list users and ACLs."""
    return "gateway user list && gateway acl list"
