"""The settings of quotas and of limits of connections: their rows, and what they make."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any, Final

from gateway.config import ConnectionLimits, QuotaConfig
from ledger.command_line import units
from ledger.command_line.settings import KafkaKey, Setting, Settings

_QUOTAS: Final = QuotaConfig()
_BROKERS: Final = "inter-broker-listener-name"  # of `gateway serve` only
_OVERRIDES_MAX: Final = 10_000
_SAMPLES_MAX: Final = 1_000
_SAMPLE_S_MAX: Final = 3_600.0


def _pairs(value: object, what: str) -> list[tuple[str, int]]:
    """Parse names and counts, such as `A:1,B:2`. A name may have colons. Raises ValueError."""
    found: dict[str, int] = {}
    for each in units.text(value).split(","):
        name, colon, count = each.strip().rpartition(":")
        if not colon or not name or not count.isascii() or not count.isdigit():
            raise ValueError(f"{each[:100]}: must be {what}, with commas between them")
        if int(count) > units.INT32_MAX:
            raise ValueError(f"{count[:20]} is more than {units.INT32_MAX}")
        if name in found:
            raise ValueError(f"names {name[:100]} twice")
        found[name] = int(count)
    if len(found) > _OVERRIDES_MAX:
        raise ValueError(f"has {len(found)} names; at most {_OVERRIDES_MAX} are possible")
    return list(found.items())


def _addresses(value: object) -> str:
    """Parse limits of addresses, such as `10.0.0.1:100`. Host names are not looked up."""
    found: list[tuple[str, int]] = []
    for name, count in _pairs(value, "an address and a count, such as 10.0.0.1:100"):
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            raise ValueError(
                f"{name[:100]}: must be an IP address, because host names are not resolved"
            ) from None
        found.append((str(address), count))
    return _written(found)


def _listeners(value: object) -> str:
    found = _pairs(value, "a listener and a count, such as CLIENTS:100")
    return _written([(name.upper(), count) for name, count in found])


def _written(pairs: list[tuple[str, int]]) -> str:
    return ",".join(f"{name}:{count}" for name, count in pairs)


def _read(text: str | None) -> tuple[tuple[str, int], ...]:
    """Return the names and counts of a value that was parsed."""
    pairs = (each.rpartition(":") for each in (text or "").split(",") if each)
    return tuple((name, int(count)) for name, _, count in pairs)


def _row(name: str, kind: str, parse: Any, text: str, kafka: str = "", **more: Any) -> Setting:
    keys = (KafkaKey(kafka, unit=more.pop("unit", "")),) if kafka else ()
    return Setting(name=name, kind=kind, parse=parse, help=text, kafka=keys, **more)


def quota_rows() -> list[Setting]:
    """Return the rows of limits of connections and of the windows of quotas."""
    count = units.whole(1, units.INT32_MAX)
    samples, length = units.whole(1, _SAMPLES_MAX), units.duration(1.0, _SAMPLE_S_MAX)
    return [
        _row(
            *("max-connections", "COUNT", count),
            "Open connections of all listeners together.",
            "max.connections",
            default=ConnectionLimits().connections_max,
        ),
        _row(
            *("max-connections-per-ip", "COUNT", units.whole(0, units.INT32_MAX)),
            "Open connections of one address, also of this machine.",
            "max.connections.per.ip",
            shown="1000, but any number of this machine",
        ),
        _row(
            *("max-connections-per-ip-overrides", "LIMITS", _addresses),
            "Limits of single addresses in place of it, such as 10.0.0.1:100,10.0.0.2:0.",
            "max.connections.per.ip.overrides",
            shown="none",
        ),
        _row(
            *("max-connections-per-listener", "LIMITS", _listeners),
            "Open connections of single listeners, such as CLIENTS:1000,EXTERNAL:100.",
            shown="none",
        ),
        _row(
            *("audit-log", "FILE", units.text),
            "File to which denials, failed logins and changes are appended as JSON, or stderr.",
            shown="none",
        ),
        _row(
            *("quota-window-num", "COUNT", samples),
            "Samples over which rates of client quotas are measured.",
            "quota.window.num",
            default=_QUOTAS.samples,
        ),
        _row(
            *("quota-window-size", "DURATION", length),
            "Length of a sample.",
            "quota.window.size.seconds",
            unit="s",
            default=_QUOTAS.sample_ms / 1000,
        ),
        _row(
            *("controller-quota-window-num", "COUNT", samples),
            "Samples of the quota of partitions that clients create and delete: its burst.",
            "controller.quota.window.num",
            default=_QUOTAS.controller_samples,
        ),
        _row(
            *("controller-quota-window-size", "DURATION", length),
            "Length of a sample of this quota.",
            "controller.quota.window.size.seconds",
            unit="s",
            default=_QUOTAS.controller_sample_ms / 1000,
        ),
    ]


def with_limits(limits: ConnectionLimits, settings: Settings) -> ConnectionLimits:
    """Return the limits of connections with those that the settings make."""
    per_address = settings["max-connections-per-ip"]
    if per_address is not None:
        limits = replace(limits, connections_per_address_max=per_address, counts_loopback=True)
    return replace(
        limits,
        connections_max=settings["max-connections"],
        per_address=_read(settings["max-connections-per-ip-overrides"]),
        per_listener=_read(settings["max-connections-per-listener"]),
        protected_listener=(settings[_BROKERS] or "") if _BROKERS in settings.table.rows else "",
    )


def quota_config(settings: Settings) -> QuotaConfig:
    """Return the windows of quotas that the settings make."""
    return QuotaConfig(
        samples=settings["quota-window-num"],
        sample_ms=round(1000 * settings["quota-window-size"]),
        controller_samples=settings["controller-quota-window-num"],
        controller_sample_ms=round(1000 * settings["controller-quota-window-size"]),
    )
