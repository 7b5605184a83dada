"""The private request: what this gateway knows about itself and Kafka's protocol does not carry.

`{"ask": "process"}` returns the process, with its clock. `{"ask": "events", "after": 7}` returns
the events behind that number, at most `EVENTS_AT_ONCE` or `count`; `{"ask": "events", "last": 50}`
the newest ones. `{"ask": "acknowledgements", "ledger": 3, "entry": 17}` returns which bookies
acknowledged an entry of a writer of this process, and after how many ms; null if it is not among
the newest. `{"ask": "acl", "principal": "User:ann", "host": "10.0.0.1", "operation": "READ",
"resource_type": "TOPIC", "resource_name": "orders"}` returns the decision of the authorizer, and
the rule that decided. `page` and `page_key` are those of `page_connections`. `Context.questions`
has the questions of higher layers. A refusal has the key `error` with a code, and `message`.
Everything is answered from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import UUID

from gateway.access import Operation, Resource, ResourceType
from gateway.handlers import page_connections
from gateway.handlers.api import Context, Request
from gateway.handlers.rights import allows_cluster
from gateway.wire import private_request
from ledger.add_times import add_times
from ledger.events import PROCESS, Event, events
from ledger.ids import Buffer

EVENTS_AT_ONCE: Final = 1_000
ANSWER_CHARACTERS_MAX: Final = 256 * 1024
"""Of one answer about events. Whoever asks goes on with the next question."""

_ROW_CHARACTERS: Final = 100  # of an event besides its facts, about
_ROWS_PER_TURN: Final = 100
_TEXT_MAX: Final = 32_767  # characters, as in Kafka's strings

_Answer = dict[str, Any]


async def handle(request: Request, ctx: Context) -> list[Buffer]:
    """Answer one question, or say why not. A connection has one answer at a time."""
    asked: Mapping[str, Any] = request.body
    questions = {**ctx.questions, **_QUESTIONS}
    answer = questions.get(str(asked.get("ask")))
    if asked.get("ask") == "page":  # it reads nothing, and brings its own proof
        found = await page_connections.accept(request, ctx)
    elif not allows_cluster(request, ctx, Operation.DESCRIBE):
        found = _refused("CLUSTER_AUTHORIZATION_FAILED", "not authorized to describe the cluster")
    elif answer is None:
        known = ", ".join(sorted(questions))
        found = _refused("UNSUPPORTED_VERSION", f"this gateway answers only: {known}")
    else:
        found = await answer(asked, ctx)
    return private_request.encode_answer(request.correlation_id, found)


def _refused(code: str, message: str) -> _Answer:
    return {"error": code, "message": message}


async def _process(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    report: Mapping[str, Any] = {} if ctx.process_report is None else ctx.process_report()
    return {"node_id": ctx.cluster.node_id, "process": PROCESS, **report}


async def events_of(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    """Answer the question `events`."""
    after, count = asked.get("after", 0), asked.get("count", EVENTS_AT_ONCE)
    last = asked.get("last", EVENTS_AT_ONCE)
    if not _is_count(after) or not _is_count(count) or not _is_count(last):
        return _refused("INVALID_REQUEST", "after, count and last must be numbers from 0 on")
    if "last" in asked:
        after = max(after, events.newest - last)
    rows: list[_Answer] = []
    room = ANSWER_CHARACTERS_MAX
    for number, event in enumerate(events.after(after, min(count, EVENTS_AT_ONCE)), 1):
        rows.append(_shown(event, ctx))
        room -= sum(len(str(value)) for value in event.facts.values()) + _ROW_CHARACTERS
        if room <= 0:
            break
        if number % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    return {"node_id": ctx.cluster.node_id, "process": PROCESS, "events": rows}


async def _acknowledgements(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    if not _is_count(asked.get("ledger")) or not _is_count(asked.get("entry")):
        return _refused("INVALID_REQUEST", "ledger and entry must be numbers from 0 on")
    found = add_times.find(int(asked["ledger"]), int(asked["entry"]))
    rows = None if found is None else [each._asdict() for each in found]
    return {"node_id": ctx.cluster.node_id, "process": PROCESS, "acknowledgements": rows}


async def _acl(asked: Mapping[str, Any], ctx: Context) -> _Answer:
    if ctx.acls is None:
        return _refused("SECURITY_DISABLED", "no authorizer is configured: set --authorizer")
    try:
        kind = ResourceType(str(asked.get("resource_type")))
        operation = Operation(str(asked.get("operation")))
    except ValueError:
        return _refused("INVALID_REQUEST", "operation and resource_type must be Kafka's names")
    texts = [asked.get(key) for key in ("principal", "host", "resource_name")]
    if not all(isinstance(each, str) and len(each) <= _TEXT_MAX for each in texts):
        return _refused("INVALID_REQUEST", "principal, host and resource_name must be texts")
    principal, host, name = map(str, texts)
    found = ctx.acls.decide(principal, host, operation, Resource(kind, name))
    return {
        "node_id": ctx.cluster.node_id,
        "process": PROCESS,
        "allowed": found.allowed,
        "rule": found.rule,
        "acl": None if found.acl is None else str(found.acl),
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(event: Event, ctx: Context) -> _Answer:
    """Return an event with the topic and partition in place of the stream."""
    facts = dict(event.facts)
    place = _place(str(facts.get("stream", "")), ctx)
    if place is not None:
        del facts["stream"]
        facts = {**place, **facts}
    return {"number": event.number, "at_ms": event.at_ms, "kind": event.kind.value, **facts}


def _place(stream: str, ctx: Context) -> dict[str, str | int] | None:
    topic_id, _, index = stream.rpartition("-")
    try:
        topic, partition = ctx.catalog.by_id(UUID(topic_id)), int(index)
    except ValueError:
        return None
    return {"topic": topic.name if topic else f"{topic_id} (deleted)", "partition": partition}


_QUESTIONS: Final[Mapping[str, Callable[[Mapping[str, Any], Context], Awaitable[_Answer]]]] = {
    "acknowledgements": _acknowledgements,
    "acl": _acl,
    "events": events_of,
    "page_key": page_connections.confirm,
    "process": _process,
}
