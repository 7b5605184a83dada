"""The times of a group of the consumer protocol: of its own configs, else of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.core.consumer_members import ConsumerTiming

GROUP: Final = 32
"""The type of the resource; its name is the group's id."""

_BROKER: Final = "group.consumer.assignment.interval.ms"


def consumer_timing(
    own: Mapping[str, str], broker: Mapping[str, str], limits: ConsumerTiming
) -> ConsumerTiming:
    """Return the times of a group with the configs `own`, on a broker with altered configs.

    Stored configs are within the bounds of the broker; see `group_configs`.
    """
    if not own and _BROKER not in broker:
        return limits
    return ConsumerTiming(
        int(own.get("consumer.session.timeout.ms", limits.session_timeout_ms)),
        int(own.get("consumer.heartbeat.interval.ms", limits.heartbeat_interval_ms)),
        int(
            own.get(
                "consumer.assignment.interval.ms",
                broker.get(_BROKER, limits.assignment_interval_ms),
            )
        ),
        limits.regex_refresh_ms,
    )
