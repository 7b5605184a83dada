"""Goal: ledger metadata change only as the protocol allows, and have BookKeeper's bytes and paths.

Method: every transition from every state; round trips by Hypothesis; bytes written by hand.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.client.metadata_format import decode, encode, ledger_of_path, ledger_path
from ledger.core.entry_format import DigestType
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import CorruptFormat

OPEN, IN_RECOVERY, CLOSED = LedgerState


def ledger(**changes):
    fields = {
        "ledger": 7,
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "fragments": (Fragment(0, ("b1", "b2", "b3")),),
    }
    return LedgerMetadata(**(fields | changes))


closed = ledger().close(4, 100)


def test_the_fragments_of_the_published_example():
    changed = ledger().with_ensemble(12, ("b4", "b2", "b3"))
    assert [(f.first, f.ensemble) for f in changed.fragments] == [
        (0, ("b1", "b2", "b3")),
        (12, ("b4", "b2", "b3")),
    ]
    assert changed.fragment_of(11).first == 0
    assert changed.bookies_of(12) == ("b4", "b2", "b3")
    assert changed.bookies_of(13) == ("b2", "b3", "b4")


def test_a_change_at_the_start_of_the_last_fragment_replaces_it():
    changed = ledger().with_ensemble(0, ("b4", "b2", "b3"))
    assert changed.fragments == (Fragment(0, ("b4", "b2", "b3")),)


def test_only_a_closed_ledger_has_a_last_entry():
    assert ledger().last_entry is None
    assert ledger().in_recovery().last_entry is None
    assert (closed.last_entry, closed.length, closed.state) == (4, 100, CLOSED)


@pytest.mark.parametrize("start", [ledger(), ledger().in_recovery()])
def test_an_open_or_recovering_ledger_can_be_closed_even_when_empty(start):
    assert start.close(-1, 0).last_entry == -1


@pytest.mark.parametrize(
    "change",
    [
        lambda: closed.in_recovery(),
        lambda: closed.close(4, 100),
        lambda: closed.with_ensemble(5, ("b4", "b2", "b3")),
        lambda: ledger().in_recovery().in_recovery(),
        lambda: ledger().with_ensemble(5, ("b4", "b2", "b3")).close(3, 9),
        lambda: ledger().with_ensemble(5, ("b4", "b2", "b3")).with_ensemble(4, ("b1", "b2", "b3")),
    ],
)
def test_what_the_protocol_never_does_is_refused(change):
    with pytest.raises(AssertionError):
        change()


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_quorum": 0},
        {"ack_quorum": 4},
        {"write_quorum": 4},
        {"fragments": ()},
        {"fragments": (Fragment(1, ("b1", "b2", "b3")),)},
        {"fragments": (Fragment(0, ("b1", "b2")),)},
        {"fragments": (Fragment(0, ("b1", "b2", "b2")),)},
        {"fragments": (Fragment(0, ("b1", "b2", "b3")), Fragment(0, ("b1", "b2", "b4")))},
        {"state": CLOSED},
        {"last_entry": 3},
        {"length": -1},
    ],
)
def test_impossible_values_are_refused(changes):
    with pytest.raises(AssertionError):
        ledger(**changes)


@st.composite
def ledgers(draw):
    e = draw(st.integers(1, 5))
    qw = draw(st.integers(1, e))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)))]
    value = LedgerMetadata(
        ledger=draw(st.integers(0, 2**63 - 1)),
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=draw(st.integers(1, qw)),
        fragments=tuple(Fragment(n, tuple(f"b{i}:{n}" for i in range(e))) for n in firsts),
        digest_type=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=5)),
        created_ms=draw(st.none() | st.integers(0, 2**62)),
        custom=draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3)),
        token=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        unknown=draw(st.sampled_from([b"", b"\x68\x05", b"\x6a\x01a\x68\x05"])),
    )
    state = draw(st.sampled_from(LedgerState))
    if state is OPEN:
        return value
    value = value.in_recovery()
    return value if state is IN_RECOVERY else value.close(firsts[-1] + 3, draw(st.integers(0, 99)))


@given(ledgers())
def test_metadata_come_back_as_they_were_stored(value):
    assert decode(encode(value), value.ledger) == value


def test_the_bytes_of_version_3():
    value = ledger(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("b1",)),),
        created_ms=5,
        custom={"k": b"v"},
        token=-1,
    )
    body = (
        "0801"
        "1001"
        "1800"
        "20ffffffffffffffffff01"
        "2801"  # Qw, E, length, last entry, OPEN
        "32060a0262311000"  # segment: b1 from 0
        "3803"
        "4200"
        "4801"
        "5005"  # CRC32C, no password, Qa, ctime
        "5a060a016b120176"
        "60ffffffffffffffffff01"  # custom, token
    )
    assert encode(value).hex() == (b"BookieMetadataFormatVersion\t3\n").hex() + "36" + body


def test_version_2_is_the_same_message_as_text():
    text = (
        "quorumSize: 2 ensembleSize: 3 length: 9 lastEntryId: 1 state: CLOSED "
        'segment { ensembleMember: "b1" ensembleMember: "b2" ensembleMember: "b3" '
        "firstEntryId: 0 } digestType: HMAC ackQuorumSize: 2"
    )
    value = decode(b"BookieMetadataFormatVersion\t2\n" + text.encode(), 7)
    expected = ledger(write_quorum=2, digest_type=DigestType.HMAC, format_version=2)
    assert value == expected.close(1, 9)


@pytest.mark.parametrize(
    ("last_line", "state", "last_entry"),
    [("", OPEN, None), ("-102\tCLOSED\n", IN_RECOVERY, None), ("17\tCLOSED\n", CLOSED, 17)],
)
def test_version_1_is_lines_of_numbers(last_line, state, last_entry):
    text = "BookieMetadataFormatVersion\t1\n2\n3\n0\n0\tb1\tb2\tb3\n12\tb4\tb2\tb3\n" + last_line
    value = decode(text.encode(), 7)
    assert (value.state, value.last_entry) == (state, last_entry)
    assert (value.write_quorum, value.ack_quorum, value.ensemble_size) == (2, 2, 3)
    assert value.fragments[1] == (12, ("b4", "b2", "b3"))


@given(ledgers(), st.sampled_from([1, 2]))
def test_an_older_version_is_kept_by_a_change(value, version):
    value = replace(value, format_version=version, token=None, unknown=b"")
    if version == 1:
        value = replace(
            value,
            ack_quorum=value.write_quorum,
            digest_type=DigestType.CRC32,
            password=b"",
            created_ms=None,
            custom={},
        )
    stored = encode(value)
    assert stored.startswith(f"BookieMetadataFormatVersion\t{version}\n".encode())
    assert decode(stored, value.ledger) == value


def test_a_change_keeps_the_fields_of_a_newer_version():
    field_13 = b"\x6a\x03new"
    read = decode(encode(ledger(unknown=field_13)), 7)
    changed = encode(read.in_recovery().close(4, 100))
    assert changed.endswith(field_13)
    assert decode(changed, 7) == ledger(unknown=field_13).in_recovery().close(4, 100)


@pytest.mark.parametrize("field", [b"\x38\x07", b"\x28\x09"], ids=["digest type", "state"])
def test_a_value_that_a_newer_version_gave_to_a_known_field_is_refused(field):
    with pytest.raises(CorruptFormat, match="unknown values"):
        decode(encode(ledger(unknown=field)), 7)


def test_a_missing_ack_quorum_means_the_write_quorum():
    text = (
        "quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN "
        'segment { ensembleMember: "b1" firstEntryId: 0 }'
    )
    assert decode(b"BookieMetadataFormatVersion\t2\n" + text.encode(), 7).ack_quorum == 1


@given(ledgers(), st.data())
def test_cut_metadata_are_refused_with_their_path(value, data):
    stored = encode(value)
    with pytest.raises(CorruptFormat, match=ledger_path(value.ledger)):
        decode(stored[: data.draw(st.integers(0, len(stored) - 1))], value.ledger)


@given(st.binary(max_size=40), st.sampled_from([b"1", b"2", b"3", b"4", b""]))
def test_foreign_bytes_are_refused_and_never_crash(data, version):
    with pytest.raises(CorruptFormat):
        decode(b"BookieMetadataFormatVersion\t" + version + b"\n" + data, 7)


@pytest.mark.parametrize(
    ("number", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (1, "/ledgers/00/0000/L0001"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (2**31, "/ledgers/000/0000/0021/4748/L3648"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_the_path_of_a_ledger_and_back(number, path):
    assert ledger_path(number) == path
    assert ledger_of_path(path) == number


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers",
        "/ledgers/LAYOUT",
        "/ledgers/idgen/ID-0000000001",
        "/ledgers/00/0000",
        "/ledgers/available/b1",
        "/ledgers/00/0000/L0001/x",
        "/other/00/0000/L0001",
    ],
)
def test_other_nodes_are_no_ledgers(path):
    assert ledger_of_path(path) is None
