"""How many connections an address and a listener may have. Source: Kafka, `ConnectionQuotas`."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import Final

from gateway.config import ConnectionLimits
from gateway.core.address_share import share_of
from gateway.settings.broker_overrides import AlteredLimits

PROTECTED_MORE: Final = 100
"""Connections of the listener for brokers beyond the limit of all, if there are others."""


class ConnectionPlaces:
    """The open connections by address and by listener, and their limits."""

    def __init__(self, limits: ConnectionLimits) -> None:
        # The present limits of connections; the others are as configured.
        self.limits = self._configured = limits
        # Number of connections by address. An address without connections has no key.
        self._by_share: Counter[str] = Counter()
        # Number of connections by listener, also of listeners that have none any more.
        self.by_listener: Counter[str] = Counter()
        # Limits of single addresses and of single listeners.
        self._per_address = dict(limits.per_address)
        self._per_listener = dict(limits.per_listener)

    def alter(self, altered: AlteredLimits) -> None:
        """Use these limits from now on, where they are below the configured ones.

        None stands for the configured limit.
        """
        known = self._configured

        def lower(wanted: int | None, configured: int) -> int:
            return configured if wanted is None else min(wanted, configured)

        overrides = altered.overrides
        self._per_address = dict(known.per_address if overrides is None else overrides)
        self._per_listener = {**dict(known.per_listener), **altered.per_listener}
        self.limits = replace(
            known,
            connections_per_address_max=lower(
                altered.per_address, known.connections_per_address_max
            ),
            counts_loopback=known.counts_loopback or altered.per_address is not None,
            connections_max=lower(altered.in_all, known.connections_max),
        )

    def has_place(self, host: str, listener: str, count: int) -> bool:
        """Return whether one more connection may be opened, if `count` are open."""
        if self._by_share[share_of(host)] >= self._most_of(host):
            return False
        of_listener = self._per_listener.get(listener, sys.maxsize)
        if self.by_listener[listener] >= of_listener:
            return False
        # From this machine an operator can always take back a limit that was set too low.
        limits = self._configured if is_loopback(host) else self.limits
        is_protected = listener == limits.protected_listener and len(self.by_listener) > 1
        return count < limits.connections_max + (PROTECTED_MORE if is_protected else 0)

    def take(self, share: str, listener: str) -> None:
        """Count an open connection."""
        self._by_share[share] += 1
        self.by_listener[listener] += 1

    def give(self, share: str, listener: str) -> None:
        """Count it no more."""
        self.by_listener[listener] -= 1
        self._by_share[share] -= 1
        if not self._by_share[share]:
            del self._by_share[share]

    def _most_of(self, host: str) -> int:
        """Return how many connections of an address may be open."""
        limits = self.limits
        override = self._per_address.get(host)
        if override is not None:
            return override
        if not is_loopback(host):
            return limits.connections_per_address_max
        if not limits.counts_loopback:
            return sys.maxsize
        return max(1, limits.connections_per_address_max)  # so that it can be taken back


def is_loopback(host: str) -> bool:
    """Return whether the address is one of this machine alone."""
    return host.startswith("127.") or host in ("::1", "", "::ffff:127.0.0.1")
