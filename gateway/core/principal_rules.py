"""Kafka's `ssl.principal.mapping.rules`: from the name of a certificate to a principal. Pure.

    RULE:pattern/replacement/[L|U],...,DEFAULT

The first rule whose pattern matches the whole name decides. `DEFAULT` keeps the name.
Source: Kafka, SslPrincipalMapper; java.util.regex.Matcher for replacements.
Patterns are Python's, which lack Java's `(?<name>...)` and intersections of classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DEFAULT: Final = "DEFAULT"
_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLIT: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSE: Final = re.compile(_RULE)
# What Java's `.` does not match, but Python's does. A rule matches no name that has one.
_LINE_ENDS: Final = re.compile("[\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the name of the principal, or None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None or _LINE_ENDS.search(name) is not None:
            return None
        found = self.pattern.sub(self._expand, name)
        return {"L": found.lower(), "U": found.upper()}.get(self.case, found)

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(_expanded(self.replacement, match))


class PrincipalRules:
    """The rules of a listener."""

    def __init__(self, text: str = DEFAULT) -> None:
        """Parse the rules. Raises ValueError that names the rule."""
        self._rules = [
            rule for each in _SPLIT.finditer(text.strip()) if (rule := _parsed(each[1])) is not None
        ]
        if not self._rules:
            raise ValueError("must have a rule, such as DEFAULT")

    def principal(self, name: str) -> str | None:
        """Return the name of the principal of a certificate's subject, or None without a rule."""
        for rule in self._rules:
            found = rule.apply(name)
            if found is not None:
                return found
        return None


def _parsed(text: str) -> _Rule | None:
    """Return a rule, or None for an empty one. Raises ValueError."""
    match = _PARSE.match(text)
    if match is None or match.end() != len(text):
        raise ValueError(
            f"{text}: must be RULE:pattern/replacement/, with L or U behind, or DEFAULT"
        )
    if match[1] is not None:
        return _Rule()
    if match[2] is None:
        return None
    try:
        pattern = re.compile(match[2], re.ASCII)  # Java's \w, \d and \s are those of ASCII
    except re.error as error:
        raise ValueError(f"{text}: its pattern is invalid: {error}") from None
    _check_replacement(text, match[4], pattern.groups)
    return _Rule(pattern, match[4], match[6])


def _check_replacement(rule: str, replacement: str, groups: int) -> None:
    """Raise ValueError for a replacement that Java would fail on when a certificate matches."""
    at = 0
    while at < len(replacement):
        character, after = replacement[at], replacement[at + 1 : at + 2]
        if character == "\\":
            at += 1
        elif character == "$":
            digit = after.isascii() and after.isdecimal()
            if not digit or (not groups and int(after) > 0):
                raise ValueError(f"{rule}: ${after} in its replacement names no group")
        at += 1


def _expanded(replacement: str, match: re.Match[str]) -> Iterator[str]:
    """Yield the parts of a replacement. A group that the pattern lacks stays as it is written."""
    groups, at = match.re.groups, 0
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\":
            yield replacement[at : at + 1]
            at += 1
        elif character != "$":
            yield character
        elif int(replacement[at]) > groups:
            yield "$"
        else:
            end = at + 1
            while (
                replacement[end : end + 1].isdecimal() and int(replacement[at : end + 1]) <= groups
            ):
                end += 1
            yield match[int(replacement[at:end])] or ""
            at = end
