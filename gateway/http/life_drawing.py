"""A record's life as steps, one below the other, with the places of their boxes. Pure.

The same steps are a drawing and a list, so that the list is the text alternative of the drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.admin.explain_text import show_moment
from gateway.http.pages import Json
from ledger.command_line.output import show_bytes

Row = Mapping[str, Any]

WIDTH: Final = 420
_LEFT: Final = 10
_LINE: Final = 17  # pixels of a line of text
_PADDING: Final = 10
_GAP: Final = 26  # between two boxes, with an arrow
_CHARACTERS_MAX: Final = 58
_CUT: Final = "…"
_HAS: Final = {"yes": "ok", "unknown": "warn", "damaged": "fail", "no": "fail", "lost": "fail"}


def draw_life(found: Row) -> Json:
    """Return the steps of an explanation, as `explain` returns it, and the size of the drawing.

    A step has a title, lines, a state (ok, warn, fail or plain), and its box. Texts of the drawing
    (`shown`) are cut to its width; those of the list are whole.
    """
    steps: list[Json] = []
    top = _LEFT
    for title, lines, state in _steps(found):
        height = 2 * _PADDING + _LINE * (1 + len(lines))
        steps.append(
            {
                "title": title,
                "lines": lines,
                "state": state,
                "y": top,
                "height": height,
                "shown": [
                    {"text": _cut(text), "y": top + _PADDING + _LINE * number - 4}
                    for number, text in enumerate([title, *lines], 1)
                ],
            }
        )
        top += height + _GAP
    return {"width": WIDTH, "height": top - _GAP + _LEFT, "left": _LEFT, "steps": steps}


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS_MAX else text[: _CHARACTERS_MAX - 1] + _CUT


def _steps(found: Row) -> Iterator[tuple[str, list[str], str]]:
    yield "Client", _client(found["record"], found["batch"], found["transaction"]), "plain"
    yield _gateway(found["leader"], found["batch"])
    yield "Segment", _segment(found["segment"]), "plain"
    yield "Ledger and entry", _ledger(found["ledger"], found["acknowledged"]), "plain"
    times = {row["bookie"]: row["after_ms"] for row in found["acknowledged"]["times"] or ()}
    for copy in found["copies"]:
        yield _bookie(copy, times)
    yield "When it goes", list(_goes(found["goes"])), "plain"


def _client(record: Row, batch: Row, transaction: Row | None) -> list[str]:
    count = batch["records"]
    lines = [f"batch of {count} record{'' if count == 1 else 's'}, {show_bytes(batch['bytes'])}"]
    if record["timestamp"] is not None:
        lines.append(f"{show_moment(record['timestamp'])} ({record['timestamp_type']})")
    if batch["producer_id"] is not None:
        lines.append(f"producer id {batch['producer_id']}, epoch {batch['producer_epoch']}")
    if transaction is not None:
        lines.append(f"transaction: {transaction['state']}")
    return lines


def _gateway(leader: Row, batch: Row) -> tuple[str, list[str], str]:
    written = f"the batch was written in leader epoch {batch['leader_epoch']}"
    if leader["node"] is None:
        return "Gateway", ["no leader now", written], "warn"
    now = f"leader now: {leader['node']} at {leader['address']}, epoch {leader['epoch']}"
    return "Gateway", [now, written], "plain"


def _segment(segment: Row) -> list[str]:
    end = segment["end_offset"]
    span = f"from offset {segment['start_offset']} on"
    if end is not None:
        span = f"offsets {segment['start_offset']} to {end - 1}"
    dlsn = segment["dlsn"]
    place = f"DLSN: segment {dlsn['segment']}, entry {dlsn['entry']}, slot {dlsn['slot']}"
    return [f"segment {segment['number']}, {segment['state']}, {span}", place]


def _ledger(ledger: Row, acknowledged: Row) -> list[str]:
    quorums = "/".join(str(ledger[key]) for key in ("ensemble_size", "write_quorum", "ack_quorum"))
    lines = [
        f"ledger {ledger['ledger']}, {ledger['state']}, quorum {quorums}",
        f"entry {ledger['entry']}, LAC {ledger['last_add_confirmed']}",
    ]
    if acknowledged["at_least"] is None:
        return [*lines, "not acknowledged yet"]
    return [*lines, f"acknowledged by at least {acknowledged['at_least']} of {acknowledged['of']}"]


def _bookie(copy: Row, times: Mapping[str, float]) -> tuple[str, list[str], str]:
    lines = [f"status {copy['status']}, has the entry: {copy['has']}"]
    if copy["file"] is not None:
        lines.append(f"{copy['file']} at {copy['position']}, {copy['length']} bytes")
    else:
        lines.append("place in its files not known")
    if copy["bookie"] in times:
        lines.append(f"acknowledged after {times[copy['bookie']]:.1f} ms")
    elif times:
        lines.append("no acknowledgement seen by the writer")
    else:
        lines.append("time of the acknowledgement not remembered")
    return f"Bookie {copy['bookie']}", lines, _HAS.get(copy["has"], "warn")


def _goes(goes: Sequence[Row]) -> Iterator[str]:
    for row in goes:
        if not row["applies"]:
            yield f"{row['by']}: never"
        elif row["earliest_ms"] is not None:
            yield f"{row['by']}: not before {show_moment(row['earliest_ms'])}"
        elif row["bytes_to_come"] is not None:
            yield f"{row['by']}: after {show_bytes(row['bytes_to_come'])} more at the earliest"
        else:
            yield f"{row['by']}: {row['condition']}"
