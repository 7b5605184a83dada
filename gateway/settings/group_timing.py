"""The times of groups of the consumer protocol: of a group's own configs, else of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from gateway.config import GroupLimits
from gateway.core.consumer_members import ConsumerTiming
from gateway.core.shown_text import shown
from gateway.log import logger
from gateway.settings.group_configs import (
    HEARTBEAT,
    INTERVAL,
    SESSION,
    Bounds,
    Capped,
    bounds_of,
    capped_broker_configs,
    capped_configs,
    effective_value,
    started_with,
)

if TYPE_CHECKING:
    from gateway.settings.broker_overrides import BrokerOverrides
    from gateway.settings.resource_configs import ResourceConfigs

GROUP: Final = 32
"""The type of the resource; its name is the group's id."""

_BROKER: Final = f"group.{INTERVAL}"
_LOGGED_MAX: Final = 20
_CAPPED: Final = "a stored config is beyond a bound of this broker, and acts as the bound"


def standard_timing(limits: GroupLimits) -> ConsumerTiming:
    """Return the times of a group without configs, on a broker without altered configs."""
    started = started_with(limits)
    return ConsumerTiming(started[SESSION], started[HEARTBEAT], started[INTERVAL])


class GroupTiming:
    """The times of each group on this broker, after all changes of the stored configs.

    A config that is beyond a bound, because a bound has changed since, is logged at the start and
    whenever its value changes, as in Kafka.
    """

    def __init__(
        self, configs: ResourceConfigs, altered: BrokerOverrides, limits: GroupLimits
    ) -> None:
        self._configs = configs
        self._altered = altered
        self._limits = limits
        self._bounds: Mapping[str, Bounds] = bounds_of(limits)
        self._standard = standard_timing(limits)
        # The configs that were beyond a bound when they were last looked at, by the group ("" for
        # the broker) and the name. Those that are new are logged.
        self._capped: Mapping[tuple[str, str], Capped] = {}
        configs.on_changed.append(self._on_changed)
        self._on_changed()

    def of(self, group_id: str) -> ConsumerTiming:
        """Return the times of a group."""
        own, broker = self._configs.get(GROUP, group_id), self._altered.effective
        if not own and _BROKER not in broker:
            return self._standard
        return consumer_timing(own, broker, self._limits, self._bounds)

    def _on_changed(self) -> None:
        found = {
            ("", name): capped
            for name, capped in capped_broker_configs(self._altered.effective, self._bounds)
        }
        for group_id in self._configs.names(GROUP):
            for name, capped in capped_configs(self._configs.get(GROUP, group_id), self._bounds):
                found[group_id, name] = capped
        fresh = [place for place in found if self._capped.get(place) != found[place]]
        self._capped = found
        for group_id, name in islice(fresh, _LOGGED_MAX):
            stored, acts = found[group_id, name]
            whose = {"group": shown(group_id)} if group_id else {}
            logger().warning(_CAPPED, **whose, config=name, stored=stored, acts=acts)
        if len(fresh) > _LOGGED_MAX:
            logger().warning(_CAPPED, more=len(fresh) - _LOGGED_MAX)
        self._warn_of_short_sessions({group_id for group_id, _ in fresh if group_id})

    def _warn_of_short_sessions(self, groups: set[str]) -> None:
        """Log which of these groups have members that cannot keep their sessions by heartbeats."""
        short = [each for each in sorted(groups) if _is_short(self.of(each))]
        if short:
            logger().warning(
                "the session timeout of a group is not greater than its heartbeat interval; check "
                "the bounds of both on this broker",
                group=shown(short[0]),
                groups=len(short),
            )


def _is_short(timing: ConsumerTiming) -> bool:
    return timing.session_timeout_ms <= timing.heartbeat_interval_ms


def consumer_timing(
    own: Mapping[str, str],
    broker: Mapping[str, str],
    limits: GroupLimits,
    bounds: Mapping[str, Bounds] | None = None,
) -> ConsumerTiming:
    """Return the times of a group with the configs `own`, on a broker with altered configs.

    Values beyond the bounds act as the bounds. `bounds` are those of `limits`.
    """
    found = bounds_of(limits) if bounds is None else bounds
    session_ms, heartbeat_ms, interval_ms = (
        effective_value(name, own, broker, found, started)
        for name, started in started_with(limits).items()
    )
    return ConsumerTiming(session_ms, heartbeat_ms, interval_ms)
