"""A bookie's cookie: its directories and its cluster.

The same text is in the metadata store and in each directory. A difference means that a disk was
lost, exchanged or wiped. The bytes are Apache BookKeeper's: the line `5`, then protobuf text.
Version 4 (no index directories) and version 3 (plain lines) are read too. Source: BookKeeper,
`bookie/Cookie.java`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import CorruptFormat
from ledger.ids import BookieId
from ledger.registry.layout import COOKIES

_VERSION = "5"


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity and the directories of a bookie.

    Directory names contain neither tabs nor newlines. `journal_dir` may be several directories,
    separated by commas. `instance_id` is the cluster's instance id, or empty.
    """

    bookie_host: str  # the bookie's id
    journal_dir: str
    ledger_dirs: tuple[str, ...]
    instance_id: str
    index_dirs: tuple[str, ...] = ()


def cookie_path(bookie: BookieId) -> str:
    """Return the path of the cookie. Its siblings are the cookies of all bookies that
    ever existed.
    """
    return f"{COOKIES}/{bookie}"


def encode(cookie: Cookie) -> bytes:
    """Encode a cookie, version 5."""
    from google.protobuf import text_format

    from ledger.wire.bookie_formats_pb2 import CookieFormat

    message = CookieFormat(
        bookieHost=cookie.bookie_host,
        journalDir=cookie.journal_dir,
        ledgerDirs=_join(cookie.ledger_dirs),
    )
    if cookie.instance_id:
        message.instanceId = cookie.instance_id
    if cookie.index_dirs:
        message.indexDirs = _join(cookie.index_dirs)
    return f"{_VERSION}\n{text_format.MessageToString(message, as_utf8=False)}".encode()


def decode(data: bytes) -> Cookie:
    """Decode a cookie. Raises CorruptFormat."""
    try:
        version, newline, text = data.decode().partition("\n")
        if not newline:
            raise ValueError("no format version")
        if version == "3":
            return _decode_lines(text)
        if version not in ("4", _VERSION):
            raise ValueError(f"unknown format version {version[:20]!r}")
        return _decode_text(text)
    except ValueError as error:
        raise CorruptFormat(f"bookie's cookie: {error}") from error


def _decode_text(text: str) -> Cookie:
    from google.protobuf import text_format

    from ledger.wire.bookie_formats_pb2 import CookieFormat

    message = CookieFormat()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ValueError(error) from error
    if not message.IsInitialized():
        raise ValueError("a field is missing")
    return Cookie(
        message.bookieHost,
        message.journalDir,
        _split(message.ledgerDirs),
        message.instanceId,
        _split(message.indexDirs) if message.HasField("indexDirs") else (),
    )


def _decode_lines(text: str) -> Cookie:
    """Decode version 3, which has no instance id."""
    lines = text.split("\n")
    if len(lines) < 3:
        raise ValueError("too few lines")
    return Cookie(lines[0], lines[1], _split(lines[2]), "")


def _join(directories: tuple[str, ...]) -> str:
    return "\t".join([str(len(directories)), *directories])


def _split(joined: str) -> tuple[str, ...]:
    count, *directories = joined.split("\t")
    if count != str(len(directories)):
        raise ValueError(f"{len(directories)} directories instead of {count[:20]!r}")
    return tuple(directories)
