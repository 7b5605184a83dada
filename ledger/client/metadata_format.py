"""The stored bytes of ledger metadata and their path, both as in Apache BookKeeper.

The bytes start with `BookieMetadataFormatVersion\\t<N>\\n`. Version 3, of new ledgers, continues
with a varint length and a protobuf message. Version 2 has the same message as protobuf text,
version 1 has lines of numbers. A ledger keeps its version.
Source: BookKeeper, `meta/LedgerMetadataSerDe.java`, `meta/HierarchicalLedgerManager.java`.
"""

from __future__ import annotations

import re

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ledger.core.entry_format import DigestType
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import CorruptFormat
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.registry.layout import LEDGERS
from ledger.wire.ledger_metadata_pb2 import LedgerMetadataFormat

SHORT_ID_MAX = 2**31 - 2  # larger ids have paths in the long form

_VERSION_LINE = b"BookieMetadataFormatVersion\t"
_IN_RECOVERY_V1 = -102
_LEDGER_PATH = re.compile(
    re.escape(LEDGERS) + r"/(\d{2})/(\d{4})/L(\d{4})|"
    + re.escape(LEDGERS) + r"/(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})"
)  # fmt: skip


def ledger_path(ledger: LedgerId) -> str:
    """Return the path of the metadata: 2-4-4 digits, or 3-4-4-4-4 for ids of 31 bits and more."""
    assert ledger >= 0
    if ledger <= SHORT_ID_MAX:
        digits = f"{ledger:010d}"
        return f"{LEDGERS}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger:019d}"
    return f"{LEDGERS}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_of_path(path: str) -> LedgerId | None:
    """Return the ledger whose metadata are at `path`, or None for any other node."""
    match = _LEDGER_PATH.fullmatch(path)
    if match is None:
        return None
    return LedgerId(int("".join(digits for digits in match.groups() if digits)))


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the bytes to store, in the format version of `metadata`."""
    assert metadata.format_version in (1, 2, 3)
    if metadata.format_version == 1:
        return _VERSION_LINE + b"1\n" + _to_lines(metadata).encode()
    message = _to_message(metadata)
    if metadata.format_version == 2:
        from google.protobuf import text_format  # slow to import, rarely needed

        message.ClearField("cToken")  # only version 3 has this field
        return _VERSION_LINE + b"2\n" + text_format.MessageToString(message).encode()
    body = message.SerializeToString(deterministic=True) + metadata.unknown
    return _VERSION_LINE + b"3\n" + _varint(len(body)) + body


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    """Set fields 1-5 and 7-9 always, as Java does."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum,
        length=metadata.length,
        lastEntryId=-1 if metadata.last_entry is None else metadata.last_entry,
        state=LedgerMetadataFormat.State.Name(metadata.state),
        digestType=LedgerMetadataFormat.DigestType.Name(metadata.digest_type),
        password=metadata.password,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first)
    for key in sorted(metadata.custom):
        message.customMetadata.add(key=key, value=metadata.custom[key])
    if metadata.created_ms is not None:
        message.ctime = metadata.created_ms
    if metadata.token is not None:
        message.cToken = metadata.token
    return message


def _to_lines(metadata: LedgerMetadata) -> str:
    """Return version 1, which has no password, digest type, ack quorum and custom metadata."""
    assert metadata.ack_quorum == metadata.write_quorum
    assert not metadata.custom
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    for fragment in metadata.fragments:
        lines.append("\t".join([str(fragment.first), *fragment.ensemble]))
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY_V1}\tCLOSED")
    elif metadata.state is LedgerState.CLOSED:
        lines.append(f"{metadata.last_entry}\tCLOSED")
    else:
        lines.append("")
    return "\n".join(lines)


def decode(data: bytes, ledger: LedgerId) -> LedgerMetadata:
    """Parse `data`. Raises CorruptFormat with the path if it is not valid metadata."""
    try:
        return _decode(data, ledger)
    except (DecodeError, ValueError, AssertionError) as error:
        raise CorruptFormat(f"ledger metadata at {ledger_path(ledger)}: {error}") from error


def _decode(data: bytes, ledger: LedgerId) -> LedgerMetadata:
    line, newline, body = data.partition(b"\n")
    if not newline or not line.startswith(_VERSION_LINE):
        raise ValueError("no format version")
    version = line[len(_VERSION_LINE) :]
    if version == b"3":
        size, start = _read_varint(body)
        if len(body) - start < size:
            raise ValueError(f"expected {size} bytes, got {len(body) - start}")
        message = LedgerMetadataFormat.FromString(body[start : start + size])
        return _from_message(message, ledger, 3)
    if version == b"2":
        return _from_message(_parse_text(body), ledger, 2)
    if version == b"1":
        return _from_lines(body.decode().splitlines(), ledger)
    raise ValueError(f"unknown format version {version!r}")


def _parse_text(body: bytes) -> LedgerMetadataFormat:
    from google.protobuf import text_format  # slow to import, rarely needed

    message = LedgerMetadataFormat()
    try:
        text_format.Parse(body.decode(), message)
    except text_format.ParseError as error:
        raise ValueError(error) from error
    if not message.IsInitialized():
        raise ValueError("a field is missing")
    return message


def _from_message(
    message: LedgerMetadataFormat, ledger: LedgerId, format_version: int
) -> LedgerMetadata:
    state = LedgerState(message.state)
    digest = message.digestType if message.HasField("digestType") else DigestType.CRC32
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger=ledger,
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize or message.quorumSize,
        state=state,
        fragments=tuple(
            Fragment(EntryId(one.firstEntryId), tuple(BookieId(b) for b in one.ensembleMember))
            for one in message.segment
        ),
        last_entry=EntryId(message.lastEntryId) if closed else None,
        length=message.length if closed else 0,
        digest_type=DigestType(digest),
        password=message.password,
        created_ms=message.ctime if message.HasField("ctime") else None,
        custom={one.key: one.value for one in message.customMetadata},
        token=message.cToken if message.HasField("cToken") else None,
        format_version=format_version,
        unknown=_unknown_fields(message),
    )


def _unknown_fields(message: LedgerMetadataFormat) -> bytes:
    """Return the bytes of fields that this version does not define.

    Raises ValueError if a defined field has an undefined value, such as a new digest type. The
    ledger cannot be read without such a field.
    """
    known = LedgerMetadataFormat.DESCRIPTOR.fields_by_number
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    if not unknown:
        return b""
    if any(number in known for number in unknown):
        raise ValueError(f"unknown values in fields {unknown}")
    rest = LedgerMetadataFormat()
    rest.CopyFrom(message)
    for name in LedgerMetadataFormat.DESCRIPTOR.fields_by_name:
        rest.ClearField(name)
    return rest.SerializePartialToString()


def _from_lines(lines: list[str], ledger: LedgerId) -> LedgerMetadata:
    """Parse the lines of version 1: Qw, E, length, one line per fragment, and the state."""
    if len(lines) < 4:
        raise ValueError("too few lines")
    quorum, ensemble_size, length = int(lines[0]), int(lines[1]), int(lines[2])
    state, last_entry = LedgerState.OPEN, None
    fragments: list[Fragment] = []
    for line in lines[3:]:
        entry, *rest = line.split("\t")
        if rest == ["CLOSED"]:
            recovering = int(entry) == _IN_RECOVERY_V1
            state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            last_entry = None if recovering else EntryId(int(entry))
            break
        fragments.append(Fragment(EntryId(int(entry)), tuple(BookieId(b) for b in rest)))
    return LedgerMetadata(
        ledger=ledger,
        ensemble_size=ensemble_size,
        write_quorum=quorum,
        ack_quorum=quorum,
        state=state,
        fragments=tuple(fragments),
        last_entry=last_entry,
        length=length if state is LedgerState.CLOSED else 0,
        digest_type=DigestType.CRC32,
        format_version=1,
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes) -> tuple[int, int]:
    """Return the varint at the start of `data`, of at most five bytes, and the index after it."""
    value = 0
    for place, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, place + 1
    raise ValueError("no length")
