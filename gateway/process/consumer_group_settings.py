"""The settings of groups of the consumer protocol (KIP-848): rows, faults, and what they make.

Names, defaults and relations are those of Apache Kafka 4.3.0, GroupCoordinatorConfig. There a group
that has configs of its own keeps them within these bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.config import CONSUMER_ASSIGNORS, GroupLimits
from ledger.command_line import units
from ledger.command_line.settings import KafkaKey, Setting, Settings

ASSIGNORS: Final = "group-consumer-assignors"
_GROUPS: Final = GroupLimits()
_TIMEOUT_S_MAX: Final = units.INT32_MAX / 1000
# The classes of Kafka for its assignors; configurations of Kafka 4.0 name them.
_CLASSES: Final[Mapping[str, str]] = {
    f"org.apache.kafka.coordinator.group.assignor.{name.capitalize()}Assignor": name
    for name in CONSUMER_ASSIGNORS
}


class _Time(NamedTuple):
    """A time of groups. The configs of a group may change it within bounds."""

    name: str  # of its setting, after `group-consumer-`
    field: str  # of GroupLimits, after `consumer_`
    least_s: float
    noun: str
    help: str


_TIMES: Final = (
    _Time(
        *("session-timeout", "session_timeout_ms", 0.001, "session timeout"),
        "Time after which a silent member is removed from a group of the consumer protocol.",
    ),
    _Time(
        *("heartbeat-interval", "heartbeat_interval_ms", 0.001, "heartbeat interval"),
        "Time between two heartbeats of a member of the consumer protocol.",
    ),
    _Time(
        *("assignment-interval", "assignment_interval_ms", 0.0, "assignment interval"),
        "Shortest time between two assignments of a group of the consumer protocol; 0ms: each "
        "change is assigned at once.",
    ),
)
_BOUNDS: Final = ("", "min", "max")
_WORDS: Final = {"min": "Shortest", "max": "Longest"}


def consumer_group_rows() -> list[Setting]:
    """Return the rows of groups of the consumer protocol."""
    return [
        Setting(
            name=ASSIGNORS,
            kind="ASSIGNOR",
            parse=_assignor,
            default=_GROUPS.consumer_assignors,
            many=True,
            kafka=(KafkaKey("group.consumer.assignors"),),
            help="Assignor of the consumer protocol that members may ask for; repeatable. Groups "
            "whose members ask for none use the first.",
        ),
        *(_row(time, bound) for time in _TIMES for bound in _BOUNDS),
    ]


def _row(time: _Time, bound: str) -> Setting:
    about = f"{_WORDS.get(bound)} {time.noun} that a group may have by configs of its own."
    return Setting(
        name=_name(time, bound),
        kind="DURATION",
        parse=units.duration(time.least_s, _TIMEOUT_S_MAX),
        default=getattr(_GROUPS, _field(time, bound)) / 1000,
        kafka=(KafkaKey(f"{_name(time, bound).replace('-', '.')}.ms", unit="ms"),),
        help=about if bound else time.help,
    )


def _name(time: _Time, bound: str) -> str:
    return "-".join(filter(None, ("group-consumer", bound, time.name)))


def _field(time: _Time, bound: str) -> str:
    return "_".join(filter(None, ("consumer", time.field, bound)))


def _assignor(value: object) -> str:
    """Parse the name of an assignor, or the name of Kafka's class for it."""
    name = _CLASSES.get(value, value) if isinstance(value, str) else value
    if name not in CONSUMER_ASSIGNORS:
        raise ValueError(f"must be {units.listed(CONSUMER_ASSIGNORS)}")
    return str(name)


units.with_choices(_assignor, CONSUMER_ASSIGNORS)


def consumer_group_faults(settings: Settings) -> list[str]:
    """Return the faults of these settings that contradict each other."""
    faults = list(_assignor_faults(settings))
    for time in _TIMES:
        value, least, most = (_name(time, bound) for bound in _BOUNDS)
        faults += _order_fault(settings, least, most)
        faults += _order_fault(settings, least, value)
        faults += _order_fault(settings, value, most)
    session, heartbeat = (_name(time, "") for time in _TIMES[:2])
    if settings.faulty & {session, heartbeat}:
        return faults
    if _ms(settings, heartbeat) >= _ms(settings, session):
        at, other, word = heartbeat, session, "less"
        if settings.is_default(heartbeat):
            at, other, word = session, heartbeat, "greater"
        shown = units.show_time(settings[other])
        faults.append(f"{settings.place(at)}: must be {word} than --{other} {shown}")
    return faults


def _ms(settings: Settings, name: str) -> int:
    return round(settings[name] * 1000)


def _assignor_faults(settings: Settings) -> list[str]:
    if ASSIGNORS in settings.faulty:
        return []
    names: tuple[str, ...] = settings[ASSIGNORS]
    place = settings.place(ASSIGNORS)
    if not names:
        return [f"{place}: must not be empty; name {units.listed(CONSUMER_ASSIGNORS)}"]
    twice = sorted({name for name in names if names.count(name) > 1})
    return [f"{place}: must not name {name} twice" for name in twice]


def _order_fault(settings: Settings, lower: str, higher: str) -> list[str]:
    """Return the fault of two times if the first is longer than the second."""
    if settings.faulty & {lower, higher} or _ms(settings, lower) <= _ms(settings, higher):
        return []
    # The fault is at the one that was set.
    at, other, word = (lower, higher, "at most")
    if settings.is_default(lower):
        at, other, word = (higher, lower, "at least")
    return [f"{settings.place(at)}: must be {word} --{other} {units.show_time(settings[other])}"]


def consumer_group_values(settings: Settings) -> dict[str, Any]:
    """Return the fields of `GroupLimits` that the settings make."""
    times = {
        _field(time, bound): _ms(settings, _name(time, bound))
        for time in _TIMES
        for bound in _BOUNDS
    }
    return {"consumer_assignors": tuple(settings[ASSIGNORS]), **times}
