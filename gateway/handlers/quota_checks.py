"""The quotas of handlers: a Fetch that has to wait returns nothing, and partitions are counted.

Without a stored quota `ctx.quotas` is None, and nothing here does anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from gateway.core.fetch_session import INITIAL_EPOCH, NO_SESSION, FetchSession
from gateway.handlers.topic_replies import AdminRefusal
from gateway.wire.fetch_reply import encode_fetch
from ledger.ids import Buffer

if TYPE_CHECKING:
    from gateway.core.quota_book import Mutations
    from gateway.handlers.api import Context, Request

_STRICT_FROM: Final = {3: 0, 19: 6, 20: 5, 37: 3}
"""By key, the version from which on partitions beyond the quota are refused.

Metadata creates topics by the newest CreateTopics, as in Kafka.
"""


def user_of(request: Request) -> str:
    """Return the name of the client's user, as quotas name it."""
    return request.peer.principal.partition(":")[2]


def spent_s(request: Request) -> float:
    """Return the time of a request so far: 0 if it began before times were measured."""
    return getattr(request, "spent_s", 0.0)


def fetch_bytes_max(request: Request, ctx: Context, bytes_max: int) -> int:
    """Return the bytes that a Fetch may return: no more than its client could ever have at once."""
    quotas = ctx.quotas
    if quotas is None or not quotas.fetch.limits:
        return bytes_max
    return min(bytes_max, quotas.fetch_bytes_max(user_of(request), request.client_id))


def throttled_fetch(
    request: Request, ctx: Context, session: FetchSession, size: int
) -> list[Buffer] | None:
    """Count a Fetch that would return records of `size` bytes. Returns an empty reply, or None.

    As in Kafka, the empty reply leaves an open session as it was, and opens no session.
    """
    quotas = ctx.quotas
    if quotas is None or not (quotas.fetch.limits or quotas.request.limits):
        return None
    wait_ms = quotas.fetched(user_of(request), request.client_id, size, spent_s(request))
    request.throttle_ms = wait_ms
    request.spent_s = 0.0  # what follows is counted when the reply leaves
    if not wait_ms:
        return None
    if session.kept and request.body.session_epoch > INITIAL_EPOCH:
        session_id = session.id
    else:
        session_id = NO_SESSION
        if not session.names_all:
            ctx.fetch_sessions.remove(session)
    return encode_fetch(
        request.version,
        request.correlation_id,
        [],
        throttle_ms=wait_ms,
        session_id=session_id,
    )


def count_reply(request: Request, ctx: Context, reply: list[Buffer], counted: int) -> None:
    """Count the bytes of a Fetch's reply beyond those that `throttled_fetch` counted."""
    quotas = ctx.quotas
    if quotas is not None and quotas.fetch.limits:
        rest = sum(map(len, reply)) - counted
        quotas.fetch.add(user_of(request), request.client_id, rest, quotas.now_ms())


def count_partitions(request: Request, ctx: Context, partitions: int) -> None:
    """Count partitions that a request creates or deletes.

    Raises AdminRefusal if its client has used up its quota, from the versions on that know the
    code. In earlier ones the client only waits. As in Kafka, the refusal has no text.
    """
    if not may_change(request, ctx, partitions):
        raise AdminRefusal(ErrorCode.throttling_quota_exceeded)


def may_change(request: Request, ctx: Context, partitions: int) -> bool:
    """Count partitions. Returns False if the request may not create or delete them now."""
    quotas = ctx.quotas
    if quotas is None or not quotas.mutation.limits:
        return True
    mutations: Mutations | None = getattr(request, "mutations", None)
    if mutations is None:
        is_strict = request.version >= _STRICT_FROM[request.key]
        mutations = quotas.mutations(user_of(request), request.client_id, is_strict=is_strict)
        if mutations is None:
            return True
        request.mutations = mutations
    return mutations.take(partitions, quotas.now_ms())
