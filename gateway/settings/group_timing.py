"""The times of groups of the consumer protocol: of a group's own configs, else of the broker."""

from __future__ import annotations

from collections.abc import Mapping
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
GROUPS_LOGGED_MAX: Final = 1_000
_CAPPED: Final = "a stored config is beyond a bound of this broker, and acts as the bound"
_SHORT: Final = (
    "the session timeout of a group is not greater than its heartbeat interval, which acts as a "
    "third of it; check the bounds of both on this broker"
)
_BEATS: Final = 3  # heartbeats in a session that is not greater than the heartbeat interval


def standard_timing(limits: GroupLimits) -> ConsumerTiming:
    """Return the times of a group without configs, on a broker without altered configs."""
    started = started_with(limits)
    return ConsumerTiming(started[SESSION], started[HEARTBEAT], started[INTERVAL])


class GroupTiming:
    """The times of each group on this broker, after all changes of the stored configs.

    A config that is beyond a bound, because a bound has changed since, is logged when its group is
    used here, once for each value. Kafka logs it at the start. So is a session timeout that is not
    greater than the heartbeat interval, because settings of the broker have changed since.
    """

    def __init__(
        self, configs: ResourceConfigs, altered: BrokerOverrides, limits: GroupLimits
    ) -> None:
        self._configs = configs
        self._altered = altered
        self._limits = limits
        self._bounds: Mapping[str, Bounds] = {
            name: each for name, each in bounds_of(limits).items() if name in started_with(limits)
        }
        self._standard = standard_timing(limits)
        # The configs beyond a bound that were logged, by the group, or by "" for the broker. At
        # most GROUPS_LOGGED_MAX: those of further groups are not logged.
        self._logged: dict[str, Mapping[str, Capped]] = {}
        # The same for the groups whose session timeout is too short: it, and the interval.
        self._short: dict[str, tuple[int, int]] = {}
        configs.on_changed.append(self._on_changed)
        self._on_changed()

    def of(self, group_id: str) -> ConsumerTiming:
        """Return the times of a group."""
        own, broker = self._configs.get(GROUP, group_id), self._altered.effective
        if not own and _BROKER not in broker:
            return self._standard
        wanted = wanted_timing(own, broker, self._limits, self._bounds)
        acts = _with_short_beats(wanted)
        capped = dict(capped_configs(own, self._bounds))
        if capped and capped != self._logged.get(group_id):
            self._log(group_id, capped)
        if acts != wanted:
            self._log_short(group_id, wanted, acts)
        return acts

    def _on_changed(self) -> None:
        capped = dict(capped_broker_configs(self._altered.effective, self._bounds))
        if capped != self._logged.get("", {}):
            self._log("", capped)

    def _log(self, group_id: str, capped: Mapping[str, Capped]) -> None:
        if len(self._logged) >= GROUPS_LOGGED_MAX and group_id not in self._logged:
            return
        self._logged[group_id] = capped
        whose = {"group": shown(group_id)} if group_id else {}
        for name, (stored, acts) in capped.items():
            logger().warning(_CAPPED, **whose, config=name, stored=stored, acts=acts)

    def _log_short(self, group_id: str, wanted: ConsumerTiming, acts: ConsumerTiming) -> None:
        times = (wanted.session_timeout_ms, wanted.heartbeat_interval_ms)
        if self._short.get(group_id) == times:
            return
        if len(self._short) >= GROUPS_LOGGED_MAX and group_id not in self._short:
            return
        self._short[group_id] = times
        logger().warning(
            _SHORT,
            group=shown(group_id),
            session_timeout_ms=wanted.session_timeout_ms,
            heartbeat_interval_ms=wanted.heartbeat_interval_ms,
            acts=acts.heartbeat_interval_ms,
        )


def wanted_timing(
    own: Mapping[str, str],
    broker: Mapping[str, str],
    limits: GroupLimits,
    bounds: Mapping[str, Bounds],
) -> ConsumerTiming:
    """Return the times of a group with the configs `own`, on a broker with altered configs.

    Values beyond the bounds, which are those of `limits`, act as the bounds, each by itself.
    """
    session_ms, heartbeat_ms, interval_ms = (
        effective_value(name, own, broker, bounds, started)
        for name, started in started_with(limits).items()
    )
    return ConsumerTiming(session_ms, heartbeat_ms, interval_ms)


def _with_short_beats(wanted: ConsumerTiming) -> ConsumerTiming:
    """Return the times with a heartbeat interval by which members stay in their session.

    One that is not less than the session acts as a third of it, even below its bound. Kafka refuses
    such a pair as configs of a group, and only logs it if it comes to act.
    """
    session_ms = wanted.session_timeout_ms
    if wanted.heartbeat_interval_ms < session_ms:
        return wanted
    return wanted._replace(heartbeat_interval_ms=max(session_ms // _BEATS, 1))
