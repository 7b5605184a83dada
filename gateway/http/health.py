"""Answers for probes: whether this process is alive, and whether it can serve clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.metrics.health import readiness

if TYPE_CHECKING:
    from gateway.handlers.api import Context


def live(ctx: Context) -> list[str]:
    """Return why this process should be restarted. An answer at all means that its loop runs."""
    return []


def ready(ctx: Context) -> list[str]:
    """Return why clients should not be sent here, a sentence for each reason."""
    return readiness(ctx)
