"""The URIs among the alternative names of an X.509 certificate. Pure.

Both transports get the certificate of a peer as DER from their TLS library, which has verified it.
One decoder for both means that a name of another type (a DNS name, an e-mail address) with the text
of a role is no role. Source: RFC 5280, 4.1 and 4.2.1.6; ITU-T X.690.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_SEQUENCE, _OID, _OCTETS, _BOOLEAN = 0x30, 0x06, 0x04, 0x01
_EXTENSIONS: Final = 0xA3  # [3], the last field of the signed part
_URI: Final = 0x86  # [6] IA5String
_ALTERNATIVE_NAMES: Final = bytes((0x55, 0x1D, 0x11))  # 2.5.29.17


class MalformedCertificate(ValueError):
    """The error that bytes are no X.509 certificate."""


class _Value(NamedTuple):
    """A DER value: its tag, its content, and where the next one begins."""

    tag: int
    content: bytes
    end: int


def uris_of(certificate: bytes) -> tuple[str, ...]:
    """Return the URIs of a DER certificate, in order. Raises MalformedCertificate."""
    signed = _read(_read(certificate, 0, _SEQUENCE).content, 0, _SEQUENCE)
    found: list[str] = []
    for field in _values(signed.content):
        if field.tag == _EXTENSIONS:
            for extension in _values(_read(field.content, 0, _SEQUENCE).content):
                found += _uris(extension)
    return tuple(found)


def _uris(extension: _Value) -> Iterator[str]:
    """Yield the URIs of an extension, if it holds alternative names."""
    parts = list(_values(extension.content)) if extension.tag == _SEQUENCE else []
    tags = [part.tag for part in parts]
    if tags not in ([_OID, _OCTETS], [_OID, _BOOLEAN, _OCTETS]):
        raise MalformedCertificate("an extension has another form")
    if parts[0].content != _ALTERNATIVE_NAMES:
        return
    for name in _values(_read(parts[-1].content, 0, _SEQUENCE).content):
        if name.tag == _URI:
            yield name.content.decode("ascii", errors="replace")


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
    if end > len(data):
        raise MalformedCertificate("it is cut short")
    if tag is not None and found != tag:
        raise MalformedCertificate("it has another form")
    return _Value(found, data[begin:end], end)
