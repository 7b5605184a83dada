"""The events of all gateways by time, the newest `KEPT` of them.

While it is asked, every gateway is asked each second for the events behind the last one that was
read. A gateway that does not answer is silent: its later events come when it answers again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.figures.peer_questions import NoAnswer, other_members, questions_of
from gateway.figures.slices import Refreshed

if TYPE_CHECKING:
    from gateway.cluster.port import ClusterMember
    from gateway.figures.peer_questions import Ask
    from gateway.handlers.api import Context

KEPT: Final = 5_000
_FIRST: Final = 1_000  # events of each gateway that the first question asks for
_ROUNDS_MAX: Final = 20  # questions to one gateway in a row

Place = tuple[int, int, int]
"""Time in ms, node id and number: the order of events."""


class TimedEvent(NamedTuple):
    """One event of one gateway."""

    place: Place
    process: str
    facts: dict[str, Any]


class Timeline:
    """Events of all gateways, each once."""

    def __init__(self, ctx: Context, ask: Ask | None = None) -> None:
        self._ctx = ctx
        self._ask = ask or questions_of(ctx).ask
        # In order of time. `arrivals` counts all that were ever added.
        self._events: list[TimedEvent] = []
        # In order of arrival, for streams: an event that came late is new to them.
        self._arrived: list[TimedEvent] = []
        self.arrivals = 0
        # By node id, the process and the number of the newest event that was read.
        self._read: dict[int, tuple[str, int]] = {}
        # Gateways that did not answer the last question, with the reason.
        self.silent: dict[int, str] = {}
        self._refreshed = Refreshed("the events of all gateways", self._refresh)

    async def fresh(self) -> Timeline:
        """Return this timeline with the events of now, which go on while it is asked."""
        await self._refreshed.get()
        return self

    async def close(self) -> None:
        await self._refreshed.close()

    def before(self, place: Place | None, count: int) -> tuple[list[TimedEvent], bool]:
        """Return up to `count` events before a place, newest first, and whether there are more.

        None is the end.
        """
        end = len(self._events)
        if place is not None:
            end = bisect_left(self._events, place, key=lambda each: each.place)
        begin = max(0, end - count)
        return self._events[begin:end][::-1], begin > 0

    def since(self, arrival: int) -> tuple[list[TimedEvent], int]:
        """Return the events that arrived behind a count, and how many of them were dropped."""
        first = self.arrivals - len(self._arrived)
        return self._arrived[max(0, arrival - first) :], max(0, first - arrival)

    def __len__(self) -> int:
        return len(self._events)

    async def _refresh(self) -> None:
        members = other_members(self._ctx)
        own = self._ctx.cluster.node_id
        found = await asyncio.gather(self._own_events(), *map(self._events_of, members))
        ids = [own, *(each.node_id for each in members)]
        self.silent = {
            node_id: why for node_id, why in zip(ids, found, strict=True) if why is not None
        }

    async def _own_events(self) -> str | None:
        # The handler is below this layer, and answers from memory.
        from gateway.handlers.private_questions import events_of

        async def ask(body: dict[str, Any]) -> dict[str, Any]:
            return await events_of(body, self._ctx)

        await self._read_all(self._ctx.cluster.node_id, ask)
        return None

    async def _events_of(self, member: ClusterMember) -> str | None:
        """Read the new events of one gateway. Returns why it is silent, None if it is not."""

        async def ask(body: dict[str, Any]) -> dict[str, Any]:
            return await self._ask(member, body)

        try:
            await self._read_all(member.node_id, ask)
        except NoAnswer as error:
            return str(error)
        except (KeyError, TypeError, ValueError) as error:
            return f"its answer cannot be read: {type(error).__name__}"
        return None

    async def _read_all(self, node_id: int, ask: Any) -> None:
        for _ in range(_ROUNDS_MAX):
            process, read = self._read.get(node_id, ("", 0))
            answer = await ask({"ask": "events", "after": read, "last": _FIRST})
            now = str(answer["process"])
            if process and process != now:  # it began anew: its events count from 1 again
                self._read[node_id] = (now, 0)
                continue
            events: list[dict[str, Any]] = answer["events"]
            for event in events:
                self._add(node_id, now, event)
            if not events:
                self._read[node_id] = (now, read)
                return
            self._read[node_id] = (now, int(events[-1]["number"]))
            await asyncio.sleep(0)

    def _add(self, node_id: int, process: str, event: dict[str, Any]) -> None:
        place = (int(event["at_ms"]), node_id, int(event["number"]))
        added = TimedEvent(place, process, event)
        insort(self._events, added, key=lambda each: each.place)
        self._arrived.append(added)
        self.arrivals += 1
        if len(self._events) > 2 * KEPT:
            del self._events[:KEPT]
        if len(self._arrived) > 2 * KEPT:
            del self._arrived[:KEPT]
