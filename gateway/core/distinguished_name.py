"""The subject of a certificate, written as Java's X500Principal.getName() does. Pure.

Kafka names the principal of a client certificate so, and rules and ACLs quote this form: the last
attribute comes first, nine attribute types have short names, and every other type is its OID with
the value in hexadecimal. Source: RFC 2253; OpenJDK, X500Name and AVA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString.
_TEXT_TAGS: Final = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_EDGES: Final = " \r"


class MalformedCertificate(ValueError):
    """The error that bytes are no X.509 certificate."""


class _Value(NamedTuple):
    """A DER value: its tag, its content, its whole encoding, and where the next one begins."""

    tag: int
    content: bytes
    whole: bytes
    end: int


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate. Raises MalformedCertificate."""
    signed = _read(certificate, 0, _SEQUENCE)
    fields = _values(_read(signed.content, 0, _SEQUENCE).content)
    first = next(fields, None)
    skipped = 4 if first is not None and first.tag == _VERSION else 3
    # Behind the version: serial number, signature, issuer and validity.
    for _ in range(skipped):
        next(fields, None)
    subject = next(fields, None)
    if subject is None or subject.tag != _SEQUENCE:
        raise MalformedCertificate("it has no subject")
    return ",".join(reversed([_relative(each) for each in _values(subject.content)]))


def _relative(part: _Value) -> str:
    """Return one relative name: an attribute, or several joined by `+`."""
    if part.tag != _SET:
        raise MalformedCertificate("its subject has no sets")
    return "+".join(_attribute(each.content) for each in _values(part.content))


def _attribute(content: bytes) -> str:
    kind = _read(content, 0, _OID)
    value = _read(content, kind.end)
    name = _NAMES.get(oid := _dotted(kind.content))
    if name is None or value.tag not in _TEXT_TAGS:
        return f"{name or oid}=#{value.whole.hex()}"
    return f"{name}={_escape(value.content.decode(errors='replace'))}"


def _escape(text: str) -> str:
    shown = "".join(_character(each) for each in text)
    begin = len(shown) - len(shown.lstrip(_EDGES))
    end = len(shown.rstrip(_EDGES))
    return "".join(
        f"\\{each}" if index < begin or index >= end else each for index, each in enumerate(shown)
    )


def _character(character: str) -> str:
    if character == "\0":
        return "\\00"
    return f"\\{character}" if character in _ESCAPED else character


def _dotted(content: bytes) -> str:
    """Return an object identifier as text."""
    if not content or content[-1] & 0x80:
        raise MalformedCertificate("an object identifier is cut short")
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _values(content: bytes) -> Iterator[_Value]:
    at = 0
    while at < len(content):
        value = _read(content, at)
        yield value
        at = value.end


def _read(data: bytes, at: int, tag: int | None = None) -> _Value:
    """Read the DER value at this position. Raises MalformedCertificate."""
    if at + 2 > len(data):
        raise MalformedCertificate("it is cut short")
    found, size, begin = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[begin : begin + count], "big")
        begin += count
    end = begin + size
    if end > len(data) or (tag is not None and found != tag):
        raise MalformedCertificate("it is cut short" if end > len(data) else "it has another form")
    return _Value(found, data[begin:end], data[at:end], end)
