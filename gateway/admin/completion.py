"""What a shell completes after `gateway`: topics and groups of the cluster, and profiles.

A shell waits while it completes, so a server gets at most `ASK_S_MAX` seconds, and its answer is
used again for `KEPT_S` seconds. Whatever fails completes nothing: there is no place for an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import click

from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.client_settings import ClientSettings, UnsupportedSecurity
from gateway.admin.connection_settings import completing_settings
from gateway.admin.groups import list_groups
from gateway.admin.profile_place import NO_PROFILE, file_path
from gateway.admin.topic_list import list_matching

ASK_S_MAX: Final = 0.5
KEPT_S: Final = 60.0
_WORDS_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_DEFAULT: Final = "127.0.0.1:9092"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:@%+=/][A-Za-z0-9._:@%+=/-]*")
"""Names that no shell reads as more than a word. Others are not offered: whoever may name a group
would name a command that runs once an operator completes it. A `-` would begin an option.
"""
_NO_ANSWER: Final = (
    AdminError,
    Unreachable,
    UnsupportedSecurity,
    TimeoutError,
    OSError,
    ValueError,
)


def topics(ctx: click.Context, incomplete: str) -> Sequence[str]:
    """Return the topics that begin so; Kafka's own ones only if the beginning is theirs."""

    async def ask(client: AdminClient) -> list[str]:
        return [row["name"] for row in await list_matching(client, (), internal=True)]

    names = _names(ctx, "topics", ask)
    return _fitting(names, incomplete, hidden="" if incomplete.startswith("_") else "__")


def groups(ctx: click.Context, incomplete: str) -> Sequence[str]:
    """Return the groups that begin so."""

    async def ask(client: AdminClient) -> list[str]:
        return [row["group"] for row in await list_groups(client)]

    return _fitting(_names(ctx, "groups", ask), incomplete)


def profiles(ctx: click.Context, incomplete: str) -> Sequence[str]:
    """Return the profiles that begin so, and `none` behind `--profile`."""
    from gateway.admin.profiles import ProfileFault, load

    try:
        names = sorted(load(file_path()).profiles)
    except ProfileFault:
        return []
    return _fitting([*names, NO_PROFILE], incomplete)


def _fitting(names: Sequence[str], incomplete: str, hidden: str = "") -> Sequence[str]:
    """Return the names that begin so, and that a shell takes as they are."""
    found = [
        name
        for name in names
        if name.startswith(incomplete)
        and not (hidden and name.startswith(hidden))
        and _PLAIN.fullmatch(name)
    ]
    return found[:_WORDS_MAX]


def _names(
    ctx: click.Context, what: str, ask: Callable[[AdminClient], Awaitable[list[str]]]
) -> list[str]:
    from gateway.admin.profiles import ProfileFault

    try:
        settings = completing_settings(ctx, _DEFAULT)
    except ProfileFault:
        return []
    kept = _file(what, settings.bootstrap)
    found = _read(kept)
    if found is None:
        try:
            found = sorted(asyncio.run(_asked(settings, ask)))
        except _NO_ANSWER:
            return []
        _write(kept, found)
    return found


async def _asked(
    settings: ClientSettings, ask: Callable[[AdminClient], Awaitable[list[str]]]
) -> list[str]:
    async with asyncio.timeout(ASK_S_MAX):
        limits = {"connect_s_max": ASK_S_MAX, "answer_s_max": ASK_S_MAX, "retry_s_max": 0.0}
        async with AdminClient(settings, **limits) as client:
            return await ask(client)


def _file(what: str, servers: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    name = sha256(servers.encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(base) / "ledger-gateway" / f"{what}-{name}.json"


def _read(path: Path) -> list[str] | None:
    """Return the names that were kept, or None if they are too old or unreadable."""
    try:
        stat = path.stat()
        if not 0 <= time.time() - stat.st_mtime <= KEPT_S or stat.st_size > _FILE_BYTES_MAX:
            return None
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, list):
        return None
    names = cast("list[object]", found)
    return [name for name in names if isinstance(name, str)]


def _write(path: Path, names: list[str]) -> None:
    """Keep the names, readable by this user only."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(names, file)
        part.replace(path)
