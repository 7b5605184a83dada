"""Goal: `-i avro` reads lines and files within bounds, and a registry's answers are checked.

Method: in memory, with files that fastavro wrote, and a registry that is served over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from io import BytesIO

import cramjam
import fastavro
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.avro_container import BLOCK_BYTES_MAX
from gateway.admin.avro_input import AvroInput, AvroTarget
from gateway.admin.avro_schema import Schema
from gateway.admin.bad_input import BadInput
from gateway.admin.consume_avro import AvroValues
from gateway.admin.consume_batches import PlainRecord
from gateway.admin.record_input import BrokenInput, Defaults
from gateway.admin.record_json import BadRecord
from gateway.admin.schema_registry import Registry
from tests.gateway.schema_registry import as_bytes, serving

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
    ],
}
TEXT = json.dumps(ORDER)
ORDERS = [{"id": number, "who": f"w{number}" if number % 2 else None} for number in range(50)]
LIMIT = 2**20
NO_DEFAULTS = Defaults()


def target(schema=TEXT, url="", subject="t-value", number=None):
    found = None if schema is None else Schema(schema)
    return AvroTarget(found, Registry(url, 5) if url else None, subject, number)


def read(pieces, chosen=None, defaults=NO_DEFAULTS):
    """The items of an input in pieces, and the error that ended it."""

    async def work():
        reader = AvroInput(chosen or target(None), defaults, LIMIT)
        found = []
        for piece in [*pieces, b""]:
            await reader.prepare(piece)
            found += reader.feed(piece) if piece else reader.end()
        return found

    return asyncio.run(work())


def values(items):
    return [record.value for _, record in items]


def container(codec="null", block=200, schema=ORDER, datums=ORDERS):
    file = BytesIO()
    fastavro.writer(file, schema, datums, codec=codec, sync_interval=block)
    return file.getvalue()


def begun(schema=ORDER):
    """The header of a file, and its marker."""
    whole = container(schema=schema, datums=[])
    return whole, whole[-16:]


def cut(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


ENCODED = [Schema(TEXT).encode(each) for each in ORDERS]

# lines


def test_lines_of_json_become_datums():
    lines = b'{"id": 1, "who": "ann"}\n\n{"id": 2, "who": {"string": "bob"}}\r\n{"id": 3}'
    wanted = [
        Schema(TEXT).encode({"id": at, "who": who}) for at, who in enumerate(["ann", "bob"], 1)
    ]
    found = read([lines], target(), Defaults(key=b"k", partition=2, headers=[("h", b"v")]))
    assert [line for line, _ in found] == [1, 3, 4]
    assert values(found) == [*wanted, Schema(TEXT).encode({"id": 3})]
    assert {(each.key, each.partition, tuple(each.headers)) for _, each in found} == {
        (b"k", 2, (("h", b"v"),))
    }


@pytest.mark.parametrize(
    ("line", "reason", "column"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes", 2),
        (b'{"id": "x"}', "`id` must be long, not 'x'", 0),
        (b'{"id": 1\xff}', "not UTF-8", 9),
        (b'{"id": ' + b"9" * 5000 + b"}", "not JSON: a number has too many digits", 0),
        (b"[" * 100_000, "not JSON: nested too deeply", 0),
        (b'{"id": NaN}', "`id` must be long, not nan", 0),
    ],
)
def test_a_bad_line_is_named_and_the_next_one_read(line, reason, column):
    (_, bad), (number, good) = read([line + b'\n{"id": 1}\n'], target())
    assert isinstance(bad, BadRecord)
    assert (str(bad), bad.column) == (reason, column)
    assert (number, good.value) == (2, ENCODED[0].replace(b"\0", b"\2", 1))


def test_lines_need_a_schema():
    with pytest.raises(BadInput, match="lines of JSON need --schema FILE"):
        read([b"{}\n"])


# files


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_file_is_cut_into_its_datums(codec, size):
    assert values(read(cut(container(codec), size))) == ENCODED


def test_a_file_with_zstandard_is_read():
    header, marker = begun()
    begin = header.replace(b"\x08null", b"\x12zstandard")
    body = zstandard.ZstdCompressor().compress(b"".join(ENCODED))
    block = number(len(ENCODED)) + number(len(body)) + body + marker
    assert values(read([begin + block])) == ENCODED


def number(value):
    return Schema('"long"').encode(value)


@given(st.integers(0, 3000), st.integers(0, 255), st.booleans())
@settings(max_examples=100)
def test_a_damaged_file_has_good_records_and_then_one_error(at, byte, cuts):
    whole = container("deflate")
    at %= len(whole)
    damaged = whole[:at] if cuts else whole[:at] + bytes((byte,)) + whole[at + 1 :]
    try:
        found = read([damaged], target())
    except (BrokenInput, BadInput) as error:
        assert str(error)
        return
    assert not any(isinstance(each, BrokenInput) for _, each in found[:-1])


def test_a_file_that_ends_early_is_refused_behind_its_records():
    *good, (at, bad) = read([container()[:-5]])
    assert values(good) == ENCODED[: len(good)]
    assert (at, str(bad)) == (len(good) + 1, "not an Avro file: the file ends within a block")
    with pytest.raises(BrokenInput, match="ends within the header"):
        read([container()[:30]])


BOMB = bytes(BLOCK_BYTES_MAX + 1000)


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        ("deflate", lambda: container("deflate", 2**30, "bytes", [BOMB])),
        ("bzip2", lambda: container("bzip2", 2**30, "bytes", [BOMB])),
        ("xz", lambda: container("xz", 2**30, "bytes", [BOMB])),
        ("snappy", lambda: container("snappy", 2**30, "bytes", [BOMB])),
        ("null", lambda: container("null", 2**30, "bytes", [BOMB])),
    ],
)
def test_a_block_that_would_fill_the_memory_is_refused(codec, body):
    ((_, bad),) = read([body()])
    assert isinstance(bad, BrokenInput)
    assert "block" in str(bad)


def test_datums_without_bytes_and_lying_sizes_are_refused():
    begin, marker = begun()
    for block in (number(2**40) + number(0), number(1) + number(2**40), number(-1) + number(1)):
        assert isinstance(read([begin + block + marker])[-1][1], BrokenInput)
    nothing, marker = begun("null")
    assert "takes no byte" in str(read([nothing + number(2**40) + number(0) + marker])[0][1])
    for header in (b"Obj\1" + number(2**40), b"Obj\1" + number(1) + number(2**40)):
        with pytest.raises(BrokenInput, match="header"):
            read([header])


def test_a_file_of_another_schema_is_refused_and_of_the_same_is_not():
    same = {**ORDER, "doc": "with another text"}
    assert values(read([container(schema=same)], target())) == ENCODED
    with pytest.raises(BrokenInput, match="has another schema than --schema"):
        read([container()], target('"string"'))


# a registry


def decoded(values_, by, *, strict=True):
    records = [PlainRecord(at, 0, 0, None, each, ()) for at, each in enumerate(values_)]
    found, error = asyncio.run(AvroValues(by, strict=strict).decode("t", 0, records))
    return [each.value for each in found], error


def test_lines_and_files_go_through_a_registry_and_back():
    with serving() as registry:
        lines = "".join(json.dumps(each) + "\n" for each in ORDERS).encode()
        by_schema = values(read([lines], target(TEXT, registry.url)))
        latest = values(read([lines], target(None, registry.url)))
        by_id = values(read([lines], target(None, registry.url, number=1)))
        by_file = values(read([container()], target(None, registry.url, "file")))
        assert by_schema == latest == by_id
        assert by_schema == [b"\0\0\0\0\1" + each for each in ENCODED]
        assert registry.subjects["t-value"] == 1
        assert by_file[0][5:] == ENCODED[0]
        client = Registry(registry.url, 5)
        registry.asked.clear()
        shown, error = decoded([*by_schema, None], client)
        assert error is None
        assert [each and json.loads(each) for each in shown] == [*ORDERS, None]
        assert registry.asked == ["/schemas/ids/1"]


def test_a_value_that_is_no_avro_is_an_error_or_left_as_it_is():
    with serving() as registry:
        registry.add("t-value", ORDER)
        good = b"\0\0\0\0\1" + ENCODED[1]
        for bad, reason in [
            (b"text", "t/0@1: the value does not begin with a 0 byte"),
            (b"\0\0\0\0\1", "t/0@1: the value is no datum of the schema"),
            (b"\0\0\0\0\x63a", "t/0@1: http://127.0.0.1"),
        ]:
            shown, error = decoded([good, bad, good], Registry(registry.url, 5))
            assert len(shown) == 1
            assert str(error).startswith(reason)
            assert error.exit_code == (1 if b"c" in bad else 65)
            shown, error = decoded([good, bad, bad], Registry(registry.url, 5), strict=False)
            assert (shown[1:], error) == ([bad, bad], None)


def test_an_unknown_id_is_asked_for_once():
    with serving() as registry:
        decoded([b"\0\0\0\0\x63a"] * 20, Registry(registry.url, 5), strict=False)
        assert registry.asked == ["/schemas/ids/99"]


def test_an_id_that_was_unknown_is_asked_for_again_after_a_while():
    with serving() as registry:
        client = Registry(registry.url, 5, failure_s=0)
        framed = b"\0\0\0\0\1" + ENCODED[1]
        assert decoded([framed], client)[1] is not None
        registry.add("t-value", ORDER)
        assert decoded([framed], client)[1] is None
        decoded([framed], client)
        assert registry.asked == ["/schemas/ids/1"] * 2


def test_user_and_password_are_sent_and_never_shown():
    with serving() as registry:
        url = registry.url.replace("http://", "http://ann:p%40ss@")
        registry.answers["/schemas/ids/1"] = (401, b"{}", {})
        _, error = decoded([b"\0\0\0\0\1a"], Registry(url, 5), strict=False)
        assert registry.authorizations == {f"Basic {b64encode(b'ann:p@ss').decode()}"}
        assert error.exit_code == 77
        assert "ss" not in str(error).replace("address", "").replace("pass user:password@", "")


LARGE = b'{"schema": "' + b"a" * 2**20 + b'"}'


@pytest.mark.parametrize(
    ("answer", "exit_code", "reason"),
    [
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), 1, "redirects to another address"),
        ((200, LARGE, {}), 1, "has answered with more than 1 MiB"),
        ((200, b"<html>", {}), 1, "does not answer as a schema registry"),
        ((200, b"[" * 100_000, {}), 1, "does not answer as a schema registry"),
        (
            (200, as_bytes({"schemaType": "PROTOBUF", "schema": ""}), {}),
            1,
            "only AVRO is supported",
        ),
        ((200, as_bytes({"schema": 5}), {}), 1, "has answered with no schema"),
        ((200, as_bytes({"schema": "{"}), {}), 1, "cannot be used: line 1 column 2: not JSON"),
        ((200, as_bytes({"schema": "{}", "references": [{}]}), {}), 1, "refers to others"),
        ((500, b"", {}), 69, "no schema registry at http://127.0.0.1"),
    ],
)
def test_an_answer_that_is_no_schema_is_named(answer, exit_code, reason):
    with serving() as registry:
        registry.answers["/schemas/ids/1"] = answer
        shown, error = decoded([b"\0\0\0\0\1a"], Registry(registry.url, 5))
    assert shown == []
    assert reason in str(error)
    assert error.exit_code == exit_code
    assert "\n" not in str(error)


def test_a_registry_that_is_silent_or_down_is_an_error_also_for_auto():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        _, error = decoded([b"\0\0\0\0\1a"], Registry(url, 0.05), strict=False)
    assert str(error) == f"t/0@0: no schema registry at {url}: no response in 0.05 s"
    _, error = decoded([b"\0\0\0\0\1a"], Registry(url, 5), strict=False)
    assert error.exit_code == 69


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8081", "ftp://a", "http://", "http://a:b", "http://a?x=1", "http://a:99999"],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match=r"\w"):
        Registry(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:s3cr/et@host",
        "https://user:12/s3cr@host",
        "https://user:s3cr?et@host",
        "https://user:12#s3cr@host",
        "https://user:[s3cr@host",
        "https://user:pass@host:s3cr",
    ],
)
def test_an_address_with_a_wrong_password_is_refused_without_it(url):
    with pytest.raises(ValueError, match="must be http://host:port or https") as refused:
        Registry(url)
    assert "s3cr" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_snappy_without_its_checksum_is_refused():
    whole = container("snappy", 2**30)
    body = bytes(cramjam.snappy.compress_raw(b"".join(ENCODED)))
    at = whole.index(body) + len(body)
    damaged = whole[:at] + bytes(4) + whole[at + 4 :]
    assert "wrong checksum" in str(read([damaged])[0][1])
