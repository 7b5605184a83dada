"""Goal: cookies, service info and marks of lost copies are Apache BookKeeper's bytes, both ways.

Method: bytes written by hand, round trips by Hypothesis, and whatever else is refused by name.
Java itself is asked in tests/compat/bookkeeper.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import CorruptFormat
from ledger.ports.bookies import DEFAULT_RACK, BookieInfo
from ledger.registry import cookie, service_info
from ledger.registry import underreplication_format as underreplication
from ledger.registry.cookie import Cookie
from ledger.wire.bookie_formats_pb2 import BookieServiceInfoFormat

COOKIE = Cookie("b1-0a1b2c3d", "/journal", ("/data/1", "/data/2"), "an-instance", ("/index",))
COOKIE_TEXT = (
    b'5\nbookieHost: "b1-0a1b2c3d"\njournalDir: "/journal"\n'
    b'ledgerDirs: "2\\t/data/1\\t/data/2"\ninstanceId: "an-instance"\nindexDirs: "1\\t/index"\n'
)
names = st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]), max_size=9)


def test_the_bytes_of_a_cookie():
    assert cookie.encode(COOKIE) == COOKIE_TEXT
    assert b'"\\303\\274\\""' in cookie.encode(Cookie('ü"', "", (), ""))  # as Java escapes
    assert cookie.cookie_path("b1") == "/ledgers/cookies/b1"


@given(
    st.builds(Cookie, names, names, st.tuples(names, names), names, st.tuples() | st.tuples(names))
)
def test_a_cookie_comes_back(value):
    assert cookie.decode(cookie.encode(value)) == value


def test_versions_3_and_4_of_a_cookie_are_read():
    assert cookie.decode(b"3\nb1\n/journal\n1\t/data\n") == Cookie("b1", "/journal", ("/data",), "")
    text = b'4\nbookieHost: "b1"\njournalDir: "/j"\nledgerDirs: "1\\t/d"\ninstanceId: "i"\n'
    assert cookie.decode(text) == Cookie("b1", "/j", ("/d",), "i")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"5\n",
        b"6" + COOKIE_TEXT[1:],
        b"3\nb1\n/journal",
        b"3\nb1\n/journal\n2\t/data\n",
        COOKIE_TEXT.replace(b'"2\\t', b'"3\\t'),
        COOKIE_TEXT.replace(b"journalDir", b"other"),
        COOKIE_TEXT[:-3],
        b"5\n\xff",
    ],
)
def test_what_is_no_cookie_is_refused(data):
    with pytest.raises(CorruptFormat, match="cookie"):
        cookie.decode(data)


infos = st.builds(
    BookieInfo,
    *(names, st.integers(0, 65535), names.filter(bool), st.booleans(), names),
    tcp_port=st.integers(0, 65535),
)


@given(infos)
def test_service_info_comes_back(info):
    assert (
        service_info.decode(service_info.encode("b1", info), "b1", read_only=info.read_only) == info
    )


def test_a_bookie_publishes_one_grpc_endpoint_and_its_rack():
    message = BookieServiceInfoFormat.FromString(
        service_info.encode("b1", BookieInfo("10.0.0.1", 3181, "/dc/r1"))
    )
    (endpoint,) = message.endpoints
    assert (endpoint.id, endpoint.host, endpoint.port) == ("b1", "10.0.0.1", 3181)
    assert endpoint.protocol == "bookie-grpc"
    assert dict(message.properties) == {"rack": "/dc/r1"}


def test_a_bookie_publishes_an_endpoint_for_each_transport_and_old_clients_find_theirs():
    both = BookieInfo("10.0.0.1", 3182, tcp_port=3181)
    message = BookieServiceInfoFormat.FromString(service_info.encode("b1", both))
    ports = {endpoint.protocol: endpoint.port for endpoint in message.endpoints}
    assert ports == {"bookie-grpc": 3182, "bookie-tcp": 3181}
    assert service_info.decode(message.SerializeToString(), "b1", read_only=False) == both


def test_among_many_endpoints_the_grpc_one_is_taken_and_without_it_the_java_one():
    message = BookieServiceInfoFormat()
    message.endpoints.add(id="http", host="h1", port=8080, protocol="http")
    message.endpoints.add(id="bookie", host="h2", port=3181, protocol="bookie-rpc")
    read = service_info.decode(message.SerializeToString(), "b1", read_only=False)
    assert read == BookieInfo("h2", 3181, DEFAULT_RACK, False)
    message.endpoints.add(id="b1", host="h3", port=3182, protocol="bookie-grpc")
    assert service_info.decode(message.SerializeToString(), "b1", read_only=True).host == "h3"


def test_a_bookie_without_service_info_is_its_id():
    assert service_info.decode(b"", "host-1:3181", read_only=False) == BookieInfo("host-1", 3181)


@pytest.mark.parametrize(
    ("data", "bookie"),
    [
        (b"", "b1"),
        (b"", ":3181"),
        (b"", "b1:x"),
        (b"\x32", "b1"),
        (b"\x32\x00", "b1"),
        (b"\x3a\x00", "b"),
    ],
)
def test_service_info_without_an_address_is_refused(data, bookie):
    with pytest.raises(CorruptFormat, match=bookie):
        service_info.decode(data, bookie, read_only=False)


@pytest.mark.parametrize(
    ("ledger", "path"),
    [
        (0, "0000/0000/0000/0000/urL0000000000"),
        (0x1234ABCD, "0000/0000/1234/abcd/urL0305441741"),
        (2**63 - 1, "7fff/ffff/ffff/ffff/urL9223372036854775807"),
    ],
)
def test_the_path_of_a_mark_and_back(ledger, path):
    marked = underreplication.ledger_path_of(ledger)
    assert marked == f"/ledgers/underreplication/ledgers/{path}"
    assert underreplication.ledger_of_node(marked) == ledger
    lock = underreplication.lock_path(ledger)
    assert lock == f"/ledgers/underreplication/locks/{path.rpartition('/')[2]}"
    assert underreplication.ledger_of_node(lock) == ledger


@pytest.mark.parametrize("name", ["ab12", "urL12", "urL", "xurL0000000001", "urL000000000x"])
def test_other_nodes_are_no_marks(name):
    assert underreplication.ledger_of_node(name) is None


def test_the_bytes_of_marks_locks_votes_and_the_layout():
    missing = underreplication.encode_missing(("b1", "b2"), 7)
    assert missing == b'replica: "b1"\nreplica: "b2"\nctime: 7\n'
    assert underreplication.encode_missing(()) == b""
    assert underreplication.encode_lock("ü") == b'bookieId: "\\303\\274"\n'
    assert underreplication.encode_lock("b1") == b'bookieId: "b1"\n'
    assert underreplication.encode_vote("b1") == b'bookieId: "b1"\n'
    assert underreplication.encode_layout() == b'type: "BASIC"\nversion: 1\n'


@pytest.mark.slow
@given(st.lists(names).map(tuple), st.none() | st.integers(0, 2**62), names)
def test_marks_locks_and_votes_come_back(replicas, ctime_ms, bookie):
    data = underreplication.encode_missing(replicas, ctime_ms)
    assert underreplication.decode_missing(data) == (replicas, ctime_ms)
    assert underreplication.decode_lock(underreplication.encode_lock(bookie)) == bookie
    assert underreplication.decode_vote(underreplication.encode_vote(bookie)) == bookie


def test_only_our_layout_of_marks_is_ours():
    assert underreplication.is_our_layout(underreplication.encode_layout())
    assert not underreplication.is_our_layout(b'type: "BASIC" version: 2')
    assert not underreplication.is_our_layout(b'type: "OTHER" version: 1')


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (underreplication.decode_missing, b"replica: 1"),
        (underreplication.decode_missing, b"\xff"),
        (underreplication.decode_lock, b"bookieId"),
        (underreplication.decode_vote, b"voter: 'b1'"),
        (underreplication.is_our_layout, b'type: "BASIC"'),
    ],
)
def test_what_is_no_mark_lock_vote_or_layout_is_refused(decode, data):
    with pytest.raises(CorruptFormat):
        decode(data)
