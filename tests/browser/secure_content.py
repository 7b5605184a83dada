"""Users, ACLs and quotas of a gateway with an authorizer, for the pages of security.

Every client is `User:ANONYMOUS` there, and a super user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.admin.acls import add_acls
from gateway.admin.client import AdminClient
from gateway.admin.users import add_user
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port

_ALTER_CLIENT_QUOTAS = 49
_PASSWORD = "correct horse"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_LIMITS = {"producer_byte_rate": 10_485_760.0, "request_percentage": 50.0}


def secure_options(directory: Path) -> list[str]:
    """Return the options of such a gateway, whose audit log is in this directory."""
    rules = ["--authorizer", "standard", "--super-users", "User:ANONYMOUS"]
    return [*rules, "--audit-log", str(directory / "audit.log")]


@contextmanager
def secure_page(directory: Path) -> Iterator[str]:
    """Start such a gateway with fixed content. Yields the address of its page."""
    port = free_port()
    options = ["--http-port", str(port), *secure_options(directory)]
    with Gateway(directory / "gateway", options) as gateway:
        add_secure_content(gateway.bootstrap)
        yield f"http://127.0.0.1:{port}"


def add_secure_content(bootstrap: str, hostile: Sequence[str] = ()) -> None:
    """Add users, ACLs and quotas, also of the hostile names."""
    # In a thread: playwright may have an event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, _add(bootstrap, hostile)).result()


async def _add(bootstrap: str, hostile: Sequence[str]) -> None:
    async with AdminClient(bootstrap) as admin:
        for user in ("alice", "billing", "spark"):
            await add_user(admin, user, _PASSWORD, MECHANISMS)
        await add_acls(
            admin,
            [
                _acl("User:alice", "READ", "orders"),
                _acl("User:alice", "WRITE", "orders"),
                _acl("User:billing", "READ", "invoices-", pattern_type="PREFIXED"),
                _acl("User:mallory", "ALL", "*", permission="DENY"),
                *(_acl(f"User:{each}", "READ", each) for each in hostile if each),
            ],
        )
        for entity in ({"user": "alice"}, {"user": "billing", "client-id": None}):
            await _alter_quota(admin, entity)
        for each in hostile:
            await _alter_quota(admin, {"client-id": each})


def _acl(principal: str, operation: str, name: str, **more: str) -> dict[str, Any]:
    return {
        "principal": principal,
        "permission": "ALLOW",
        "operation": operation,
        "resource_type": "TOPIC",
        "resource_name": name,
        "pattern_type": "LITERAL",
        "host": "*",
        **more,
    }


async def _alter_quota(admin: AdminClient, entity: dict[str, str | None]) -> None:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value, "remove": False} for key, value in _LIMITS.items()],
    }
    await admin.send(_ALTER_CLIENT_QUOTAS, {"entries": [entry], "validate_only": False})
