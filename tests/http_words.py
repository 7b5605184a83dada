"""The meanings of the parameters and fields that docs/http-api.md lists.

A key is a name, or a path and a name where a route has a meaning of its own. The names themselves
come from the code: a test fails if one has no meaning here, or if a meaning has no name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.http.pages import CURSOR_CHARACTERS_MAX, LIMIT, LIMIT_MAX
from gateway.http.record_filter import ISOLATIONS, SHOWN, STARTS
from gateway.http.views import audit, groups, listing, spark, topics
from gateway.metrics.history import APIS, KINDS, SPANS
from ledger.events import EventKind


def _choice(words: object) -> str:
    assert not isinstance(words, str)
    return ", ".join(f"`{each}`" for each in words)  # type: ignore[attr-defined]


_SEARCH = (
    f"Names that contain this text in any case, or match it as a glob if it has `*`, `?` or `[`. "
    f"At most {listing.SEARCH_MAX} characters."
)
_AT = "A time in milliseconds since 1970."

PARAMETERS: Final[Mapping[str, str]] = {
    "limit": f"Rows of the answer: 1 to {LIMIT_MAX}, default {LIMIT}.",
    "cursor": "Where the rows go on: `next` of the answer before. At most "
    f"{CURSOR_CHARACTERS_MAX:,} characters.",
    "/slow cursor": "Refused: all rows are in one answer.",
    "/topics/{topic}/tail cursor": "Refused: a tail begins at the end.",
    "search": _SEARCH,
    "/security/quotas search": "Entities, such as `user=alice, client-id=app`, that contain this "
    "text in any case, or match it as a glob. At most 255 characters.",
    "principal": "Principals, such as `User:alice`, that contain this text in any case, or match "
    "it as a glob. At most 255 characters.",
    "resource": "Resources, such as `TOPIC:orders`, that contain this text in any case, or match "
    "it as a glob. At most 255 characters.",
    "event": f"Only lines of this event: {_choice(audit.EVENTS)}.",
    "/topics sort": f"One of {_choice(topics.ORDERS)}; the first is the default.",
    "/groups sort": f"One of {_choice(groups.ORDERS)}; the first is the default.",
    "/spark sort": f"One of {_choice(spark.ORDERS)}; the first is the default.",
    "kind": f"Only events of this kind: {_choice(EventKind)}.",
    "api": "Only requests of this API, such as `Produce`.",
    "span": f"The period: {_choice(SPANS)}; default `1h`.",
    "series": f"What is shown: {_choice(KINDS)}.",
    "of": f"The API, group or bookie of the series; an API is one of {_choice(APIS)}. At most 500 "
    "characters.",
    "show": f"Form of keys and values: {_choice(SHOWN)}; the first is the default.",
    "at": _AT + " The answer has the offsets that the group had then. Default: now.",
    "from": f"Where records begin: {_choice(STARTS)}; the first is the default.",
    "/topics/{topic}/copy from": "Where it begins: `oldest` (the default), `offset` or `time`.",
    "/topics/{topic}/tail from": "Only `newest`: a tail begins at the end.",
    "offset": "Where `from=offset` begins.",
    "time": "Where `from=time` begins: `2026-05-01T12:00`, `2h` (two hours ago), or milliseconds.",
    "partition": "Partitions such as `0,2-4`; all without it.",
    "key": "A pattern that the whole key matches, such as `ann*`.",
    "text": "The value contains exactly this.",
    "header": "`NAME` or `NAME=VALUE`.",
    "where": "An expression of CEL, such as `value.total > 100`. It needs the extra `cel`.",
    "isolation": f"One of {_choice(ISOLATIONS)}; the first is the default.",
}

FIELDS: Final[Mapping[str, str]] = {
    "confirm": "The name of the topic, group or process that is changed.",
    "/topics/create confirm": "The name of the new topic.",
    "/topics/{topic}/copy confirm": "The name of the topic in `to`.",
    "name": "The name of the new topic.",
    "partitions": "Number of partitions. Default: that of the server.",
    "replication_factor": "Bookies that store each record. Default: that of the server.",
    "settings": "Settings of the topic, `KEY=VALUE` on each line; at most 100.",
    "/topics/{topic}/produce key": "The key. Empty: null.",
    "/topics/{topic}/produce value": "The value.",
    "headers": "Headers, `NAME=VALUE` on each line; `NAME` alone has the value null.",
    "form": "How `key`, `value` and the values of `headers` are written: `text`, `base64`, `hex`.",
    "tombstone": "Not empty: the value is null.",
    "/topics/{topic}/produce partition": "The partition. Default: the one that the key chooses.",
    "record": "A line of JSON, as `topic consume -o jsonl` prints it, in place of other fields.",
    "/topics/{topic}/alter key": "The setting to change.",
    "/topics/{topic}/alter value": "Its new value.",
    "reset": "Not empty: back to the default.",
    "/topics/{topic}/copy to": "The topic to which records are copied.",
    "/groups/{group}/seek to": "A position of `group seek --to`: `earliest`, `42`, `-1h`.",
    "topics": "Only these topics, separated by spaces: `orders` or `orders:0,3`.",
    "plan": "Not empty: change nothing, and return what would be done. Needs no `confirm`.",
    "at": _AT,
}
