"""The drawings of the documents: docs/images/architecture.svg and partition.svg, light and dark.

`python -m tests.drawings` writes them. They hold no script, and name nothing outside of themselves;
`prefers-color-scheme` in their style chooses the colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from tests.house import ROOT

IMAGES = ROOT / "docs/images"
_STYLE = """\
<style>
text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.paper { fill: #ffffff; }
.box { fill: #f6f8fa; stroke: #59636e; stroke-width: 1.5; }
.store { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.5; }
.open { fill: #dafbe1; stroke: #1a7f37; stroke-width: 1.5; }
.name { font-weight: 600; }
.small { font-size: 12px; fill: #59636e; }
.arrow { fill: none; stroke: #59636e; stroke-width: 1.5; }
.tip { fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .paper { fill: #0d1117; }
  .box { fill: #151b23; stroke: #9198a1; }
  .store { fill: #121d2f; stroke: #4493f8; }
  .open { fill: #12261e; stroke: #3fb950; }
  .small { fill: #9198a1; }
  .arrow { stroke: #9198a1; }
  .tip { fill: #9198a1; }
}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" \
orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>
"""


def drawing(width: int, height: int, title: str, text: str, parts: Sequence[str]) -> str:
    """Return an SVG of this size, with a title and a description for readers of the screen."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-labelledby="title text">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="text">{escape(text)}</desc>\n'
    )
    paper = f'<rect class="paper" width="{width}" height="{height}" rx="8"/>'
    return "\n".join([head + _STYLE + paper, *parts, "</svg>\n"])


def box(left: int, top: int, width: int, height: int, kind: str, *lines: str) -> str:
    """A box with lines of text in its middle; the first one is its name."""
    at = top + height / 2 - 9 * (len(lines) - 1) + 5
    shape = f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'
    words = [
        label(left + width // 2, at + 18 * number, line, "small" if number else "name")
        for number, line in enumerate(lines)
    ]
    return "\n".join([shape, *words])


def label(left: float, top: float, text: str, kind: str = "small", anchor: str = "middle") -> str:
    """A line of text around a point, or from it with the anchor `start`."""
    place = f'x="{left:g}" y="{top:g}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def arrow(path: str, *, both: bool = False) -> str:
    """A line with a tip at its end, or at both."""
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<path class="arrow" d="{path}"{start} marker-end="url(#tip)"/>'


def architecture() -> str:
    """A cluster: clients, gateways, ZooKeeper, bookies, the auditor, and what they exchange."""
    return drawing(
        960,
        560,
        "The processes of a cluster",
        "Kafka clients, commands and browsers connect to gateways. Gateways write to bookies, and "
        "keep metadata in ZooKeeper. The auditor copies what lost bookies held.",
        [
            box(30, 24, 260, 62, "box", "Kafka clients, kcat, Spark", "unchanged"),
            box(350, 24, 260, 62, "box", "gateway topic, group, top ...", "commands"),
            box(670, 24, 260, 62, "box", "browser, Prometheus", "the page, its JSON, metrics"),
            arrow("M160 86V150"),
            arrow("M480 86V150"),
            arrow("M800 86V150"),
            label(172, 122, "Kafka's protocol", anchor="start"),
            label(492, 122, "Kafka's protocol", anchor="start"),
            label(812, 122, "HTTP", anchor="start"),
            *_gateways(),
            arrow("M160 328V396", both=True),
            label(172, 366, "topics, owners, ledgers", anchor="start"),
            arrow("M620 328V396"),
            label(632, 366, "adds and reads: a connection for each bookie", anchor="start"),
            box(30, 398, 220, 62, "store", "ZooKeeper", "metadata, no records"),
            *_bookies(),
            arrow("M298 429H252"),
            box(30, 488, 220, 48, "box", "bookie audit", "re-replicates ledgers"),
            arrow("M140 488V462"),
            arrow("M250 512H640V462"),
        ],
    )


def _gateways() -> Iterator[str]:
    for shift in (16, 8, 0):
        yield box(30 + shift, 152 + shift, 884, 160, "box")
    yield label(472, 178, "gateway serve, any number of them: each is a Kafka broker", "name")
    inner = {
        "connections": "one handler for each API",
        "partitions": "leader of its share",
        "groups": "members and offsets",
        "transactions": "coordinator, markers",
    }
    for number, (name, text) in enumerate(inner.items()):
        yield box(46 + 216 * number, 192, 202, 50, "open", name, text)
    streams = "streams: a partition is a chain of segments, a segment is a ledger with one writer"
    yield box(46, 252, 850, 46, "store", streams)


def _bookies() -> Iterator[str]:
    for number in range(4):
        name, left = f"bookie {number + 1}", 300 + 158 * number
        yield box(left, 398, 144, 62, "store", name, "log, index in RocksDB")


_SEGMENTS: Mapping[str, tuple[str, str, str]] = {
    "segment 1": ("offsets 0 to 4,999", "ledger 17, closed", "store"),
    "segment 2": ("offsets 5,000 to 9,811", "ledger 23, closed", "store"),
    "segment 3": ("offsets from 9,812 on", "ledger 31, open: the leader writes", "open"),
}
_ENTRIES = 6
_LEDGER = "an entry holds batches, and three bookies store it"
_FATE = (
    "Two of three bookies must sync an entry before its records are acknowledged. Bookie 2 failed "
    "after entry 3:",
    "bookie 4 takes its place from entry 4 on, and the auditor copies the older entries to another "
    "bookie.",
)


def partition() -> str:
    """A partition: its segments, and the entries of one ledger with their copies on bookies."""
    parts = [label(30, 40, "partition orders-0 is a stream of segments", "name", "start")]
    for number, (name, (offsets, ledger, kind)) in enumerate(_SEGMENTS.items()):
        parts.append(box(30 + 304 * number, 56, 290, 78, kind, name, offsets, ledger))
    parts += [
        arrow("M783 134V180"),
        label(30, 176, f"ledger 31: {_LEDGER}", "name", "start"),
    ]
    for number in range(_ENTRIES):
        left = 180 + 126 * number
        parts.append(box(left, 190, 112, 36, "open", f"entry {number}"))
    for row in range(4):
        top = 250 + 48 * row
        parts.append(box(30, top, 130, 36, "store", f"bookie {row + 1}"))
        for number in range(_ENTRIES):
            if _holds(row, number):
                parts.append(box(180 + 126 * number, top, 112, 36, "store", "copy"))
    for number, line in enumerate(_FATE):
        parts.append(label(30, 464 + 18 * number, line, anchor="start"))
    return drawing(
        960,
        500,
        "A partition, its segments, and the copies of their entries",
        "A partition is a chain of segments. Each is a ledger, whose entries three bookies store.",
        parts,
    )


def _holds(row: int, entry: int) -> bool:
    """Return whether a bookie has an entry: the fourth replaces the second from entry 4 on."""
    return {1: entry < 4, 3: entry >= 4}.get(row, True)


DRAWINGS = {"architecture.svg": architecture, "partition.svg": partition}


def differences() -> list[str]:
    """What to do if a drawing is not as the code draws it."""
    wrong = [
        name
        for name, draw in DRAWINGS.items()
        if not (IMAGES / name).exists() or (IMAGES / name).read_text() != draw()
    ]
    return [f"docs/images/{name}: run `python -m tests.drawings`" for name in wrong]


if __name__ == "__main__":
    for each, draw_it in DRAWINGS.items():
        (IMAGES / each).write_text(draw_it())
