"""Prints settings, and changes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gateway.admin.topics import Row
from ledger.command_line.output import Output, note, usage

if TYPE_CHECKING:
    from gateway.admin.configs import Change

_EFFECT = {True: "yes", False: "no: it is stored and shown only", None: "-"}
_EFFECTS_SHOWN = 20  # sentences for people; JSON has all
_NAMED_MAX = 10  # partitions that a sentence names


def key_values(pairs: Sequence[str], output: Output) -> dict[str, str | None]:
    """Parse `KEY=VALUE` arguments; end the command at one that is not."""
    found: dict[str, str | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            usage(f"{pair!r} is not key=value, for example retention.ms=3600000", output)
        found[key] = value
    return found


def show_settings(rows: Sequence[Row], every: bool, output: Output) -> None:
    """Show settings: all, or those that do not have their default."""
    shown = [row for row in rows if every or row["origin"] != "default"]
    hidden = len(rows) - len(shown)
    after = f"\n{hidden} settings have their defaults; --all shows them." if hidden else ""
    output.show(shown, after=after)


def show_change(done: Change, output: Output) -> None:
    """Show what was changed, and the server's remark on it."""
    if done.remark:
        note(f"warning: {done.remark}")
    output.show(done.rows)


def explained_text(found: Row) -> str:
    """Return the lines for people above the rows of an explained setting."""
    lines = [f"{found['key']} = {'-' if found['value'] is None else found['value']}"]
    lines.append(f"  origin:     {_origins(found)}")
    lines.append(f"  meaning:    {found['meaning'] or '-'}")
    lines.append(f"  has effect: {_EFFECT[found['has_effect']]}")
    effects = _effects(found.get("effect", ()))
    lines += [f"  now:        {text}" for text in effects[:_EFFECTS_SHOWN]]
    if len(effects) > _EFFECTS_SHOWN:
        lines.append(f"  now:        ... {len(effects) - _EFFECTS_SHOWN} more with -o json")
    return "\n".join(lines)


def _origins(found: Row) -> str:
    """Return the origin, and the values that it hides."""
    hidden = [f"{each['key']}={each['value']} ({each['origin']})" for each in found["values"][1:]]
    return found["origin"] + (f"; otherwise {', '.join(hidden)}" if hidden else "")


def _effects(effects: Iterable[Row]) -> list[str]:
    """Return the sentences, each with the partitions for which it holds."""
    partitions: dict[str, list[str]] = {}
    for each in effects:
        where = partitions.setdefault(each["text"], [])
        if each["partition"] is not None:
            where.append(str(each["partition"]))
    return [f"{_places(where)}{text}" for text, where in partitions.items()]


def _places(where: Sequence[str]) -> str:
    if not where:
        return ""
    more = f" and {len(where) - _NAMED_MAX} more" if len(where) > _NAMED_MAX else ""
    return f"partition {', '.join(where[:_NAMED_MAX])}{more}: "
