"""Hides secrets in text and in settings. Pure.

Every pattern takes time in proportion to the text. Source: the names that Kafka's own configs mark
as passwords, and the usual forms of secrets in logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

HIDDEN: Final = "(hidden)"
_WORDS = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|credential|jaas|private[._-]?key|api[._-]?key"
    r"|access[._-]?key|keystore[._-]?key|salt|sasl[._-]?username"
)
# Each secret that the patterns find is on a line with one of these, in lower case.
_STEMS = (
    *("passw", "passphrase", "pwd", "secret", "token", "credential", "jaas", "private", "api"),
    *("access", "keystore", "salt", "sasl", "://", "bearer", "basic", "loginmodule"),
)
_NAME = re.compile(_WORDS, re.IGNORECASE)
_BLOCK = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL
)
# The end of a key whose beginning is not in the text.
_REST = re.compile(r"\A[A-Za-z0-9+/=\s]*-----END [A-Z0-9 ]+-----")
# A password may have a slash: the user part ends at the last @ of the text without spaces.
_USER = re.compile(r"(?P<scheme>://)(?:[^\s\"]{1,512}|[^\s/@]{1,512})@")
_HEADER = re.compile(r"(?P<name>\b(?:Bearer|Basic)\s+)[A-Za-z0-9+/=._~-]+", re.IGNORECASE)
# Up to a semicolon that is not in quotes. An open quote goes to the end of the line.
_JAAS = re.compile(
    r"(?P<module>LoginModule\s+(?:required|requisite|sufficient|optional))"
    r"(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^;\"'])*;?"
)
_PAIR = re.compile(
    rf"(?P<name>(?:{_WORDS})[\w.-]{{0,64}}\\*[\"']?[^\S\n]{{0,8}}[=:][^\S\n]{{0,8}})"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s,;}\])]+)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether the value of a setting with this name is a secret."""
    return _NAME.search(name) is not None


def hide_in_text(text: str) -> str:
    """Return the text without keys in PEM, passwords in URLs, and values of secret names."""
    text = _REST.sub(HIDDEN, _BLOCK.sub(HIDDEN, text))
    return "\n".join(map(_hide_in_line, text.split("\n")))


def _hide_in_line(line: str) -> str:
    lower = line.lower()
    if not any(stem in lower for stem in _STEMS):
        return line  # nearly all lines: the patterns would take a second for each MiB
    line = _USER.sub(rf"\g<scheme>{HIDDEN}@", line)
    line = _HEADER.sub(rf"\g<name>{HIDDEN}", line)
    line = _JAAS.sub(rf"\g<module> {HIDDEN};", line)
    return _PAIR.sub(rf"\g<name>{HIDDEN}", line)


def hide(value: Any, name: str = "") -> Any:
    """Return plain data without the values of secret names, and without secrets in texts."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value)
        return {key: hide(each, str(key)) for key, each in pairs.items()}
    if isinstance(value, (list, tuple)):
        return [hide(each, name) for each in cast("list[Any]", value)]
    if value is not None and not isinstance(value, bool) and is_secret(name):
        return HIDDEN
    return hide_in_text(value) if isinstance(value, str) else value
