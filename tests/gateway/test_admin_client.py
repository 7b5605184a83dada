"""Goal: the admin client reaches a server, finds common versions, and says plainly what went wrong.

Method: small servers of raw bytes on loopback ports, most of them not Kafka.
"""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager

import pytest

from gateway.admin.client import AdminClient, AdminError, Unreachable, parse_bootstrap
from gateway.admin.client_settings import ClientSettings
from gateway.admin.group_shapes import OFFSETS
from gateway.admin.groups import assigned
from gateway.wire.client_link import Closed, Dropped, Link
from gateway.wire.messages import encode_response
from ledger.command_line.output import headings
from ledger.command_line.table import as_table


def test_bootstrap_servers_are_read_as_kafka_clients_write_them():
    assert parse_bootstrap("a:1, b.c:65535,[::1]:9092") == [
        ("a", 1),
        ("b.c", 65535),
        ("::1", 9092),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", ":9092", "a:", "a:x", "a:0", "a:65536", "a:1,", "a:-1", "a:1:2", "@a:1"),
        *("a..b:1", ".:1", ".a:1", f"{'a' * 64}:1", "http:h:9092", "h :1", "a?b:1", "a/b:1"),
        "a:\N{FULLWIDTH DIGIT ONE}",
        "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher:1",
        *("[127.0.0.1:1", "127.0.0.1]:1", "[a..b]:1", "[]:1", "[h]:1", "::1:9092", "a:000001"),
    ],
)
def test_a_bad_bootstrap_server_is_named_with_an_example(text):
    with pytest.raises(ValueError, match=r"is not host:port, for example 127\.0\.0\.1:9092"):
        parse_bootstrap(text)


def test_hosts_have_labels_of_63_characters_and_may_end_in_a_dot():
    long = "a" * 63
    names = [f"{long}.b", "a_b-c.d.", "fe80::1%eth0", "127.0.0.1"]
    text = f"{long}.b:1,a_b-c.d.:1,[fe80::1%eth0]:1,[127.0.0.1]:1"
    assert parse_bootstrap(text) == [(name, 1) for name in names]


@pytest.mark.parametrize(
    "text",
    [
        *("user:secretpw@h:9092", "http://u:secretpw@h:9092", "h:1,u:secretpw@h:9092"),
        *("u:secretpw,x@h:9092", "u:x@secretpw@h:9092"),
    ],
)
def test_a_password_before_a_host_is_not_repeated(text):
    with pytest.raises(ValueError, match=r"^'\.\.\.@h:9092' is not host:port"):
        parse_bootstrap(text)


@pytest.mark.parametrize(
    ("host", "port"),
    [("a..b", 1), (".", 1), ("a" * 64, 1), ("a\0b", 1), ("::1", 65_536), ("::1", -1)],
)
@pytest.mark.real_loop
async def test_a_host_that_is_no_name_is_unreachable(host, port):
    link = Link(host, port, 1.0)
    with pytest.raises(Unreachable, match=r"^no server at .*: "):
        await link.open(1.0)


@asynccontextmanager
async def client_of(answer, *, cut=False, **limits):
    """A client of a server whose `answer(frame)` gives the bytes sent back; None closes.

    With `cut` it closes after each answer.
    """

    async def serve(reader, writer):
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                out = answer(await reader.readexactly(size))
                if out is None:
                    break
                writer.write(out)
                if cut:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with AdminClient(f"127.0.0.1:{port}", **limits) as client:
            yield client


def framed(parts):
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def served(*keys):
    """A server that answers ApiVersions with these (key, min, max) and nothing else."""

    def answer(frame):
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key != 18:
            return None
        rows = [{"api_key": k, "min_version": low, "max_version": high} for k, low, high in keys]
        reply = {"error_code": 0, "api_keys": rows}
        return framed(encode_response(18, version, correlation_id, reply))

    return answer


@pytest.mark.real_loop
async def test_the_highest_version_that_both_sides_speak_is_taken():
    async with client_of(served((3, 0, 9), (19, 2, 50), (20, 40, 50))) as client:
        assert client.version(3) == 9
        assert client.version(3, version_max=5) == 5
        assert client.version(19) == 7  # the server knows 50, we do not
        with pytest.raises(AdminError, match="does not serve API key 20"):
            client.version(20)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        framed([b"\0\0\0\1\0\0", b"\x7f" * 40]),
        framed([b"\0\0\0\7\0\0\0\0\0\0"]),
        struct.pack(">i", 2**31 - 1),
        b"\xff\xff\xff\xff",
    ],
)
@pytest.mark.real_loop
async def test_a_server_of_another_kind_is_unreachable(answer):
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        async with client_of(lambda frame: answer, answer_s_max=0.2):
            pass


@pytest.mark.real_loop
async def test_a_server_that_hangs_up_is_unreachable():
    with pytest.raises(Closed, match="closed the connection; it may speak another protocol"):
        async with client_of(lambda frame: None):
            pass


@pytest.mark.real_loop
async def test_a_server_that_hangs_up_before_the_login_may_have_another_protocol():
    async with client_of(served((3, 0, 9))) as client:
        with pytest.raises(Closed) as error:
            await client.metadata([])
    assert "security.protocol" in error.value.fix


def serving_once(answer):
    """As `answer`, until one request besides ApiVersions was answered; then it hangs up."""
    left = [True]

    def answer_or_close(frame):
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key == 18:
            return answer(frame)
        fields = {"brokers": [], "cluster_id": "c", "controller_id": 0, "topics": []}
        reply = encode_response(key, version, correlation_id, fields)
        return framed(reply) if left and left.pop() else None

    return answer_or_close


@pytest.mark.real_loop
async def test_a_server_that_hangs_up_after_an_answer_has_the_right_protocol():
    async with client_of(serving_once(served((3, 9, 9)))) as client:
        await client.metadata([])
        for _ in ("the same connection", "a new one"):
            with pytest.raises(Dropped, match=r":\d+ closed the connection$") as error:
                await client.metadata([])
            assert error.value.fix == "try again, and look into its log"


@pytest.mark.real_loop
async def test_a_server_that_hangs_up_in_an_answer_has_the_right_protocol():
    with pytest.raises(Dropped):
        async with client_of(lambda frame: b"\0\0\0\x40half of it", cut=True):
            pass


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None], ids=["end", "text", "reset"]
)
@pytest.mark.real_loop
async def test_tls_at_a_port_without_it_names_the_protocol(reply):
    async def serve(reader, writer):
        if reply is None:  # what came is not read, so that the system resets the connection
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return
        await reader.readexactly(5)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        servers = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = ClientSettings(servers, {"security.protocol": "SSL"})
        with pytest.raises(Closed, match=r"closed the connection; it may speak another protocol"):
            async with AdminClient(settings):
                pass


@pytest.mark.real_loop
async def test_a_silent_server_is_given_up_in_time():
    with pytest.raises(Unreachable, match=r"did not answer within 0\.05 s"):
        async with client_of(lambda frame: b"", answer_s_max=0.05):
            pass


def test_a_table_is_aligned_and_has_dashes_for_nothing():
    rows = [{"name": "a", "log_end": None}, {"name": "longer", "log_end": 5}]
    assert as_table(headings("name", "log_end"), rows) == "NAME   LOG-END\na      -\nlonger 5"


def test_group_tables_have_the_columns_of_kafkas_tool():
    assert [each.title for each in OFFSETS.columns if not each.if_any] == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]


class Described:
    def __init__(self, protocol_type="consumer", member_assignment=b""):
        self.protocol_type = protocol_type
        self.member_assignment = member_assignment


ASSIGNMENT = (
    struct.pack(">hi", 1, 2)
    + struct.pack(">h1siii", 1, b"a", 2, 0, 3)
    + struct.pack(">h2sii", 2, b"bc", 1, 7)
    + struct.pack(">i", -1)
)


def test_a_members_assignment_is_read_from_its_bytes():
    member = Described(member_assignment=ASSIGNMENT)
    assert assigned(member, member) == [("a", 0), ("a", 3), ("bc", 7)]


@pytest.mark.parametrize(
    "member",
    [
        Described(member_assignment=b""),
        Described(member_assignment=b"\0"),
        Described(member_assignment=ASSIGNMENT[:12]),
        Described(member_assignment=b"\0\x63" + ASSIGNMENT[2:]),
        Described(protocol_type="connect", member_assignment=ASSIGNMENT),
    ],
)
def test_bytes_that_are_no_assignment_give_none(member):
    assert assigned(member, member) == []
