"""The command `gateway explain`: one record, from its batch to the files of its bookies."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gateway.admin.explain_shapes import EXPLAINED
from gateway.admin.requests import ask, ask_storage, storage_option, tls_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_UNREACHABLE
from ledger.command_line.output import Output, fail, output_option, usage
from ledger.command_line.program import Command, option

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.explain_kafka import PartitionView

_FORMS: Final = "TOPIC PARTITION OFFSET, TOPIC/PARTITION@OFFSET, or TOPIC/PARTITION --at TIME"
_PLACE = re.compile(r"([^/@]+)/(\d{1,10})(?:@(\d{1,19}))?", re.ASCII)
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_MILLISECONDS = re.compile(r"@?(\d{13})", re.ASCII)


class Place(NamedTuple):
    """A record that is asked for. `offset` is None if only a time is given."""

    topic: str
    partition: int
    offset: int | None


def read_place(words: Sequence[str]) -> Place:
    """Parse the arguments of the command. Raises ValueError with the accepted forms."""
    rest = list(words)
    whole = _PLACE.fullmatch(rest[0]) if rest else None
    if whole is not None:
        name, index, at = whole.groups()
        rest = rest[1:] if at is None else [at, *rest[1:]]
    elif len(rest) > 1 and "/" not in rest[0]:
        name, index = rest[:2]
        rest = rest[2:]
    else:
        raise ValueError(f"pass {_FORMS}")
    if len(rest) > 1 or not all(map(_NUMBER.fullmatch, (index, *rest))):
        raise ValueError(f"{' '.join(words)}: pass {_FORMS}")
    place = Place(name, int(index), int(rest[0]) if rest else None)
    if place.partition > units.INT32_MAX or (place.offset or 0) > units.INT64_MAX:
        raise ValueError(f"{' '.join(words)}: a partition or an offset is never as large")
    return place


def read_at(word: str, now_ms: int) -> int:
    """Return the milliseconds since 1970 of a time, of `@` and 13 digits, or of how long ago."""
    from gateway.admin.notation import read_moment

    digits = _MILLISECONDS.fullmatch(word)
    return int(digits[1]) if digits else max(read_moment(word.removeprefix("@"), now_ms), 0)


@click.command("explain", cls=Command)
@click.argument(
    "words",
    nargs=-1,
    required=True,
    metavar="TOPIC PARTITION OFFSET",
    help=f"The record: {_FORMS}.",
)
@option(
    "--at",
    metavar="TIME",
    help="The first record since this time: 2026-05-01T12:00, @1777636800000, or 2h for 2 h ago.",
)
@storage_option
@tls_option
@output_option(EXPLAINED)
def explain(
    words: Sequence[str],
    at: str | None,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Explain one record: its batch, its place, its copies, and when it goes.

    Exits with 1 if there is no record at the offset, and says why.
    """
    try:
        place = read_place(words)
        at_ms = None if at is None else read_at(at, round(time.time() * 1000))
    except (ValueError, OverflowError) as error:
        usage(str(error), output)
    if (place.offset is None) == (at_ms is None):
        usage(f"{' '.join(words)}: pass an offset or --at, and not both", output)

    from gateway.admin.explain_kafka import NoMetadata, ledger_address, view_partition, with_times

    async def look(client: AdminClient) -> tuple[str, PartitionView]:
        address = await ledger_address(client) if zookeeper is None else zookeeper
        return address, await view_partition(
            client, place.topic, place.partition, place.offset, at_ms
        )

    try:
        address, view = ask(bootstrap, output, look)
    except NoMetadata as error:
        fail(EXIT_UNREACHABLE, str(error), "NO_METADATA", output)
    from gateway.admin.explain import explain as explain_record

    row = ask_storage(address, tls, output, lambda storage: explain_record(storage, view))
    found = ask(bootstrap, output, lambda client: with_times(client, row))
    from gateway.admin.explain_text import explanation_text

    output.done(found, explanation_text(found))
