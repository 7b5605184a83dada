"""Whether a gateway may get requests, for load balancers, orchestrators and `gateway health`."""

from __future__ import annotations

from enum import StrEnum

from gateway.handlers.api import Context, Phase


class NotReady(StrEnum):
    """Why a gateway is not ready, as `gateway health -o json` names it."""

    STARTING = "starting"
    DRAINING = "draining"
    WITHOUT_LEASE = "without-lease"
    TOO_FEW_BOOKIES = "too-few-bookies"


def reasons(ctx: Context) -> list[NotReady]:
    """Return why this gateway is not ready, from memory. Empty if it is.

    Without its lease a gateway refuses nearly every request, whatever else is well.
    """
    found: list[NotReady] = []
    if ctx.phase is Phase.STARTING:
        found.append(NotReady.STARTING)
    if ctx.phase is Phase.DRAINING:
        found.append(NotReady.DRAINING)
    if not ctx.cluster.lease_held():
        found.append(NotReady.WITHOUT_LEASE)
    if ctx.copies is not None and ctx.copies() < ctx.config.topics.replication_factor:
        found.append(NotReady.TOO_FEW_BOOKIES)
    return found


def readiness(ctx: Context) -> list[str]:
    """Return a sentence for each reason why this gateway is not ready. Empty if it is."""
    return [_sentence(ctx, reason) for reason in reasons(ctx)]


def _sentence(ctx: Context, reason: NotReady) -> str:
    match reason:
        case NotReady.STARTING:
            return "it is starting"
        case NotReady.DRAINING:
            return "it is draining: it hands over its partitions and groups, and ends"
        case NotReady.WITHOUT_LEASE:
            return "it has no lease: it does not reach ZooKeeper, or its session has ended"
        case NotReady.TOO_FEW_BOOKIES:
            assert ctx.copies is not None
            copies, wanted = ctx.copies(), ctx.config.topics.replication_factor
            return f"{copies} of {wanted} copies: too few bookies take writes"
