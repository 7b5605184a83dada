"""The users of SCRAM: altered by Kafka's requests, or written straight to the store."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gateway.admin.client import AdminClient
from gateway.core.scram_credentials import Mechanism, Upsertion
from gateway.core.scram_decoy import NEW_ITERATIONS, salt_of
from gateway.core.scram_exchange import MECHANISMS, salted_password
from gateway.settings.scram_users import ScramUsers
from gateway.wire.client_link import raise_for
from ledger.ports.metadata import MetadataStore

_DESCRIBE, _ALTER = 50, 51
_NO_SUCH_USER: Final = "RESOURCE_NOT_FOUND"
_SALT_BYTES: Final = 17
_NAMES: Final = {mechanism: name for name, mechanism in MECHANISMS.items()}


def upsertion(user: str, password: str, mechanism: Mechanism) -> Upsertion:
    """Return the change that gives a user this password. Takes some milliseconds."""
    salt = salt_of(secrets.token_bytes(_SALT_BYTES))
    salted = salted_password(mechanism, password, salt, NEW_ITERATIONS)
    return Upsertion(user, mechanism, NEW_ITERATIONS, salt, salted)


async def list_users(
    client: AdminClient, users: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each credential of these users, or of all. Raises AdminError."""
    asked = None if users is None else [{"name": each} for each in users]
    answer = await client.send(_DESCRIBE, {"users": asked})
    raise_for(answer.error_code, answer.error_message, "users")
    rows: list[dict[str, Any]] = []
    for each in answer.results:
        if each.error_code.name.upper() == _NO_SUCH_USER:
            continue
        raise_for(each.error_code, each.error_message, f"user {each.user}")
        rows += [
            {
                "user": each.user,
                "mechanism": _NAMES[Mechanism(info.mechanism)],
                "iterations": info.iterations,
            }
            for info in each.credential_infos
        ]
    return sorted(rows, key=lambda row: (row["user"], row["mechanism"]))


async def add_user(client: AdminClient, user: str, password: str, names: Sequence[str]) -> None:
    """Give a user this password for these mechanisms. Raises AdminError."""
    for name in names:
        change = upsertion(user, password, MECHANISMS[name])
        row = {
            "name": user,
            "mechanism": int(change.mechanism),
            "iterations": change.iterations,
            "salt": change.salt,
            "salted_password": change.salted_password,
        }
        await _alter(client, {"deletions": [], "upsertions": [row]})


async def delete_user(client: AdminClient, user: str, names: Sequence[str]) -> list[str]:
    """Delete the credentials of a user: of these mechanisms, or all. Raises AdminError."""
    found = names or [row["mechanism"] for row in await list_users(client, [user])]
    # A user without a credential is refused by the server, with its code.
    for name in found or list(MECHANISMS)[:1]:
        row = {"name": user, "mechanism": int(MECHANISMS[name])}
        await _alter(client, {"deletions": [row], "upsertions": []})
    return list(found)


async def _alter(client: AdminClient, fields: dict[str, Any]) -> None:
    answer = await client.send(_ALTER, fields)
    for each in answer.results:
        raise_for(each.error_code, each.error_message, f"user {each.user}")


async def bootstrap_user(
    store: MetadataStore, user: str, password: str, names: Sequence[str]
) -> None:
    """Give a user this password in the metadata store of a cluster. Raises LedgerError."""
    users = ScramUsers(store)
    await users.load()
    try:
        for name in names:
            await users.alter(upsertion(user, password, MECHANISMS[name]))
    finally:
        await users.close()


def metadata_file(data: Path) -> Path:
    """Return the file in which `gateway dev` keeps its metadata."""
    return data / "metadata.sqlite"
