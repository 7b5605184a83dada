"""The parts of this layer that one gateway has. Each is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from gateway.figures.mirror import Mirror
    from gateway.figures.share import Share
    from gateway.figures.timeline import Timeline
    from gateway.handlers.api import Context, LazyPart

Part = TypeVar("Part", bound="LazyPart")


def part_of(ctx: Context, name: str, make: Callable[[], Part]) -> Part:
    """Return the part of this name of a gateway, which closes it at its end."""
    part = ctx.lazy.get(name)
    if part is None:
        part = ctx.lazy[name] = make()
    return cast("Part", part)


def share_of(ctx: Context) -> Share:
    """Return what this gateway knows about the topics that it leads and its groups.

    It is sampled from the first call on. Call `Share.ask` to have it sampled every second.
    """
    from gateway.figures.share import Share

    return part_of(ctx, "share", lambda: Share(ctx))


def mirror_of(ctx: Context) -> Mirror:
    """Return what all gateways know about topics and groups. It asks them while it is asked."""
    from gateway.figures.mirror import Mirror

    return part_of(ctx, "mirror", lambda: Mirror(ctx, share_of(ctx)))


def timeline_of(ctx: Context) -> Timeline:
    """Return the events of all gateways. It asks them while it is asked."""
    from gateway.figures.timeline import Timeline

    return part_of(ctx, "timeline", lambda: Timeline(ctx))
