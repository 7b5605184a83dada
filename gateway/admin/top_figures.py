"""The figures that `gateway top` shows: topics by rate, groups by lag, and bookies.

A look takes a bounded number of requests for all topics and groups together, as `gateway topic list
--sort rate` and `gateway group lag` do. The connection to the ledgers stays open between two looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.bookies import list_known_bookies
from gateway.admin.byte_rates import ByteRates
from gateway.admin.client import AdminClient, AdminError, Place, Unreachable
from gateway.admin.group_lag import NOT_READ_BY_OFFSETS, committed_at_once
from gateway.admin.groups import list_groups
from gateway.admin.metadata_address import metadata_address
from gateway.admin.notation import write_time
from gateway.admin.requests import StorageSettings
from gateway.admin.slow import own_ms, slowest
from gateway.admin.storage import Storage, StorageConnection
from gateway.admin.topic_figures import RATE_S, figures_of, offsets_at
from gateway.admin.topic_list import in_order
from gateway.admin.topics import EARLIEST, LATEST, Row
from gateway.core.figures import by_size, growth, lag_in_records, rate, total
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Callable

_BOOKIES_S_MAX: Final = 8.0  # more than a bookie gets to answer
_SLOW_ROWS_MAX: Final = 10
_SLOW_MS: Final = 500.0  # faster requests need no look
_AGAIN_S: Final = 10.0  # after ledgers that are not within reach


class LiveFigures:
    """What one `gateway top` knows between its looks. Call `close` at the end.

    Each look has at most `rows_max` topics and as many groups. Kafka's own topics are among them
    with `internal`.
    """

    def __init__(
        self,
        client: AdminClient,
        storage: StorageSettings,
        rows_max: int,
        *,
        internal: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = storage
        self._rows_max = rows_max
        self._internal = internal
        self._clock = clock
        self._byte_rates = ByteRates(client)
        # The end offsets of the last look, and when they were read; None before the first look.
        self._before: tuple[Mapping[Place, int], float] | None = None
        # The open connection to the ledgers, and what it returned. None while there is none.
        self._connection: StorageConnection | None = None
        self._storage: Storage | None = None
        # Why the ledgers are not within reach, and until when they are not asked again.
        self._why = ""
        self._again_s = 0.0

    async def look(self) -> Row:
        """Return the figures of now, as TOP declares them. Raises AdminError or Unreachable."""
        missing: dict[str, str] = {}
        now_ms = time.time_ns() // 1_000_000
        groups, committed = await self._groups(missing)
        answer = await self._client.metadata(None)
        topics = [each for each in answer.topics if self._internal or not each.is_internal]
        places = {(each.name, part.partition_index) for each in topics for part in each.partitions}
        wanted = sorted(places.union(*committed.values()))
        ends = await offsets_at(self._client, wanted, LATEST)
        rates, over_s = await self._rates(sorted(places), ends, now_ms)
        in_bytes = await self._byte_rates.look({each.name: len(each.partitions) for each in topics})
        lags = None if groups is None else await self._lags(groups, committed, ends)
        bookies = await self._bookies(missing)
        return {
            "at": write_time(now_ms),
            "at_ms": now_ms,
            "over_s": over_s,
            "topic_count": len(topics),
            "topics": in_order([_topic_row(each, rates, in_bytes) for each in topics], "rate")[
                : self._rows_max
            ],
            "group_count": None if lags is None else len(lags),
            "groups": None if lags is None else _by_lag(lags)[: self._rows_max],
            "bookies": bookies,
            "slow": await self._slow(missing, now_ms),
            "missing": missing,
        }

    async def close(self) -> None:
        """Close the connection to the ledgers."""
        connection, self._connection, self._storage = self._connection, None, None
        if connection is not None:
            await connection.close()

    # topics

    async def _rates(
        self, places: Sequence[Place], ends: Mapping[Place, int], now_ms: int
    ) -> tuple[dict[Place, float | None], float]:
        """Return records per second of each partition, and over how many seconds they are.

        The first look counts the records whose timestamps are of the last minute. Later looks
        divide the growth of the end offsets since the look before.
        """
        before, now_s = self._before, self._clock()
        self._before = (ends, now_s)
        if before is not None:
            over_s = max(now_s - before[1], 0.001)
            grown = {place: growth(before[0].get(place), ends.get(place)) for place in places}
            rates = {place: rate(each, over_s) for place, each in grown.items()}
            return rates, round(over_s, 3)
        recent = await offsets_at(self._client, places, now_ms - 1000 * RATE_S)
        found = {
            place: figures_of(None, 0, ends.get(place), recent.get(place)).records_per_s
            for place in places
        }
        return found, float(RATE_S)

    # groups

    async def _groups(
        self, missing: dict[str, str]
    ) -> tuple[list[Row] | None, dict[str, dict[Place, int]]]:
        """Return the groups and their committed offsets; None if they cannot be listed."""
        try:
            groups = await list_groups(self._client)
            names = [row["group"] for row in groups if row["type"] != NOT_READ_BY_OFFSETS]
            return groups, await committed_at_once(self._client, names)
        except (AdminError, Unreachable) as error:
            missing["groups"] = str(error)
            return None, {}

    async def _lags(
        self,
        groups: Sequence[Row],
        committed: Mapping[str, Mapping[Place, int]],
        ends: Mapping[Place, int],
    ) -> list[Row]:
        behind = {
            place
            for offsets in committed.values()
            for place, offset in offsets.items()
            if offset < ends.get(place, offset)
        }
        starts = await offsets_at(self._client, sorted(behind), EARLIEST)
        return [
            {
                "group": row["group"],
                "state": row["state"],
                "partitions": len(committed.get(row["group"], ())),
                "lag": lag_of(committed.get(row["group"], {}), starts, ends),
            }
            for row in groups
        ]

    # slow requests

    async def _slow(self, missing: dict[str, str], now_ms: int) -> list[Row] | None:
        """Return requests of at least `_SLOW_MS`, or None if the servers do not note them."""
        try:
            found = await slowest(self._client, None, min(self._rows_max, _SLOW_ROWS_MAX))
        except (AdminError, Unreachable) as error:
            missing["slow"] = str(error)
            return None
        return [
            {
                "request": " ".join(filter(None, (row["api"], row["topic"]))),
                "total_ms": row["total_ms"],
                "age_s": max(0, now_ms - row["at_ms"]) // 1000,
                "client_id": row["client_id"],
                "address": row["address"],
            }
            for row in found.rows
            if own_ms(row) >= _SLOW_MS
        ]

    # bookies

    async def _bookies(self, missing: dict[str, str]) -> list[Row] | None:
        """Return the bookies, or None if the metadata of their ledgers are not within reach."""
        if self._clock() < self._again_s:
            missing["bookies"] = self._why
            return None
        try:
            async with asyncio.timeout(_BOOKIES_S_MAX):
                return await list_known_bookies(await self._ledgers())
        except TimeoutError:
            self._why = f"no answer within {_BOOKIES_S_MAX:g} s"
        except (AdminError, Unreachable, LedgerError) as error:
            self._why = str(error)
        await self.close()
        self._again_s = self._clock() + _AGAIN_S
        missing["bookies"] = self._why
        return None

    async def _ledgers(self) -> Storage:
        """Return the connection to the ledgers, and open it if there is none."""
        if self._storage is None:
            at = self._settings.zookeeper or await metadata_address(self._client)
            self._connection = StorageConnection(at, self._settings.tls, self._settings.transport)
            self._storage = await self._connection.open()
        return self._storage


def lag_of(
    committed: Mapping[Place, int], starts: Mapping[Place, int], ends: Mapping[Place, int]
) -> int | None:
    """Return the records that a group is behind; None if it committed nothing, or if unknown."""
    if not committed:
        return None
    return total(
        lag_in_records(offset, starts.get(place), ends.get(place))
        for place, offset in committed.items()
    )


def _topic_row(
    topic: Any, rates: Mapping[Place, float | None], in_bytes: Mapping[str, float | None]
) -> Row:
    found = total(rates.get((topic.name, each.partition_index)) for each in topic.partitions)
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "records_per_s": None if found is None else round(float(found), 3),
        "bytes_per_s": in_bytes.get(topic.name),
    }


def _by_lag(rows: Iterable[Row]) -> list[Row]:
    """Sort groups: the largest lag first, unknown ones last."""
    return sorted(rows, key=lambda row: by_size(row["lag"], row["group"]))
