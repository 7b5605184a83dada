"""Client quotas as this gateway enforces them: the stored limits, and what clients have used.

Imported only once a quota is stored. All times are those of one clock in milliseconds. Source:
Kafka, ClientQuotaManager, ClientRequestQuotaManager, ControllerMutationQuotaManager and
ConnectionQuotas.
"""

from __future__ import annotations

import math
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gateway.config import QuotaConfig
from gateway.core.client_quotas import IP, Entity
from gateway.core.quota_book import AddressBook, MutationBook, Mutations, RateBook
from gateway.core.quota_precedence import ClientLimits
from gateway.core.quota_rates import INT_MAX, QuotaWindow

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"

_EPOCH_MS: Final = 10**12
"""Added to the clock of the machine, because a new bucket is full only after a long time."""

Row = tuple[Entity, Mapping[str, float]]
"""An entity, and its limits by name."""


class EnforcedQuotas:
    """The quotas of one gateway."""

    def __init__(self, config: QuotaConfig, monotonic_s: Callable[[], float]) -> None:
        window = QuotaWindow(config.samples, config.sample_ms)
        controller = QuotaWindow(config.controller_samples, config.controller_sample_ms)
        self._monotonic_s = monotonic_s
        self.produce = RateBook(window)
        self.fetch = RateBook(window)
        self.request = RateBook(window)  # in percent of the time of the event loop
        self.mutation = MutationBook(controller)
        self.connection = AddressBook(window)
        # Seconds for which clients had to wait, and how often, by the kind of the limit.
        self.throttled_s: defaultdict[str, float] = defaultdict(float)
        self.throttled: Counter[str] = Counter()

    def now_ms(self) -> int:
        """Return the time by which values are recorded."""
        return _EPOCH_MS + int(self._monotonic_s() * 1000)

    def use(self, rows: Iterable[Row]) -> None:
        """Enforce these limits from now on. A limit that is not a number limits nothing."""
        clients: dict[str, list[tuple[Entity, float]]] = {}
        addresses: dict[str | None, float] = {}
        for entity, limits in rows:
            for name, value in limits.items():
                if math.isnan(value):
                    continue
                if IP not in entity:
                    clients.setdefault(name, []).append((entity, value))
                elif name == CONNECTION:
                    addresses[_address(entity[IP])] = float(int(value))
        self.produce.use(ClientLimits(clients.get(PRODUCE, ())))
        self.fetch.use(ClientLimits(clients.get(FETCH, ())))
        self.request.use(ClientLimits(clients.get(REQUEST, ())))
        self.mutation.use(ClientLimits(clients.get(MUTATION, ())))
        self.connection.use(addresses)

    @property
    def limits_clients(self) -> bool:
        """True if a request of some client can be limited."""
        books = (self.produce, self.fetch, self.request, self.mutation)
        return any(book.limits for book in books)

    def produced(self, user: str, client: str | None, size: int) -> int:
        """Count the bytes of a Produce. Returns the milliseconds to wait."""
        return self._count(PRODUCE, self.produce.record(user, client, size, self.now_ms()))

    def fetched(self, user: str, client: str | None, size: int, seconds: float) -> int:
        """Count the bytes and the time of a Fetch. Returns the milliseconds to wait.

        A Fetch that has to wait returns nothing, so its bytes do not count.
        """
        now_ms = self.now_ms()
        worked_ms = self.worked(user, client, seconds) if self.request.limits else 0
        wait_ms = self.fetch.record(user, client, size, now_ms)
        if wait_ms or worked_ms:
            self.fetch.add(user, client, -size, now_ms)
        return max(worked_ms, self._count(FETCH, wait_ms))

    def fetch_bytes_max(self, user: str, client: str | None) -> int:
        """Return the bytes that one Fetch may return without having to wait for certain."""
        value = self.fetch.value_max(user, client)
        return INT_MAX if value is None else int(min(value, INT_MAX))

    def worked(self, user: str, client: str | None, seconds: float) -> int:
        """Count the time of a request. Returns the milliseconds to wait, at most one sample."""
        wait_ms = self.request.record(user, client, seconds * 100.0, self.now_ms())
        return self._count(REQUEST, min(wait_ms, self.request.window.sample_ms))

    def worked_after(self, user: str, client: str | None, seconds: float) -> None:
        """Count time of a request after its answer was decided."""
        self.request.add(user, client, seconds * 100.0, self.now_ms())

    def mutations(self, user: str, client: str | None, *, is_strict: bool) -> Mutations | None:
        """Return the quota of a request that creates or deletes partitions, or None."""
        return self.mutation.begin(user, client, self.now_ms(), is_strict=is_strict)

    def mutated(self, mutations: Mutations) -> int:
        """Return the milliseconds to wait after a request that created or deleted partitions."""
        return self._count(MUTATION, mutations.throttle_ms(self.now_ms()))

    def connected(self, host: str) -> int:
        """Count a connection. Returns the milliseconds until it is closed, or 0 to keep it."""
        return self._count(CONNECTION, self.connection.record(_plain(host), self.now_ms()))

    def _count(self, kind: str, wait_ms: int) -> int:
        if wait_ms:
            self.throttled[kind] += 1
            self.throttled_s[kind] += wait_ms / 1000
        return wait_ms


def _plain(host: str) -> str:
    """Return the address of a client; an IPv4 address within IPv6 counts as itself."""
    return host[7:] if host.startswith("::ffff:") and "." in host else host


def _address(text: str | None) -> str | None:
    """Return an address of a quota as connections have it. None stands for all others."""
    if text is None:
        return None
    try:
        return _plain(socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, text)))
    except OSError:
        return socket.inet_ntoa(socket.inet_aton(text))
