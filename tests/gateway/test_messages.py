"""Goal: every request and response of kio is encoded byte for byte as kio encodes it.

Method: for each API and version, Hypothesis builds kio's entity from its class; the same content as
plain dictionaries goes through our writer. Requests are read back too. Conversions and what a
version lacks are shown one by one.
"""

from __future__ import annotations

import io
import uuid
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from gateway.handlers.api import Reply
from gateway.wire.bounds_check import check_bounds, walker
from gateway.wire.messages import (
    MalformedMessage,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from gateway.wire.schema import NoSuchSchema, request_class, response_class, shape_of

CLIENT_KEYS = [key for key in sorted(api_key_map) if key not in range(52, 55)]
MESSAGES = [
    (key, version)
    for key in CLIENT_KEYS
    for version in schema_name_map[api_key_map[key]]
    if EntityType.request in schema_name_map[api_key_map[key]][version]
]

NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "error_code": st.sampled_from(list(ErrorCode)),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(2**40), 2**40).map(lambda ms: timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**41).map(
        lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    ),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=12),
    "records": st.binary(max_size=12),
    "uuid": st.integers(1, 2**128 - 1).map(lambda number: uuid.UUID(int=number)),
}


def entities(entity):
    """Draw any instance of a kio class."""
    shape = shape_of(entity)
    return st.builds(entity, **{f.name: values(f) for f in (*shape.fields, *shape.tagged)})


def values(field):
    one = NUMBERS[field.kind] if field.struct is None else entities(field.struct)
    several = st.lists(one, max_size=2).map(tuple) if field.array else one
    return st.none() | several if field.nullable and field.tag is None else several


def plain(value):
    """Return an entity as the dictionaries that a handler would return."""
    if is_dataclass(value):
        return Reply({field.name: plain(getattr(value, field.name)) for field in fields(value)})
    return list(map(plain, value)) if isinstance(value, tuple) else value


def kio_body(entity):
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


QUICK = settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)


@pytest.mark.parametrize(("key", "version"), MESSAGES)
@QUICK
@given(data=st.data())
def test_a_response_is_what_kio_writes(key, version, data):
    body = data.draw(entities(response_class(key, version)))
    encoded = b"".join(encode_response(key, version, 7, plain(body)))
    header = 5 if body.__header_schema__.__flexible__ else 4
    assert encoded[header:] == kio_body(body)
    assert decode_response(key, version, encoded).correlation_id == 7


@pytest.mark.parametrize(("key", "version"), MESSAGES)
@QUICK
@given(data=st.data())
def test_a_request_is_what_kio_writes_and_is_read_back(key, version, data):
    body = data.draw(entities(request_class(key, version)))
    encoded = encode_request(key, version, 7, "me", plain(body))
    start = 13 if body.__header_schema__.__flexible__ else 12
    assert encoded[start:] == kio_body(body)
    assert kio_body(decode_request(key, version, encoded, start)) == encoded[start:]
    assert check_bounds(walker(type(body)), encoded, start) == (encoded, start)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_always_has_the_oldest_response_header(version):
    encoded = b"".join(encode_response(18, version, 1, Reply(error_code=35)))
    assert encoded[:6] == b"\0\0\0\1\0\x23"


def test_fields_that_a_version_lacks_are_dropped():
    reply = Reply(throttle_time=5, error_code=0, unknown_to_v0=True)
    assert b"".join(encode_response(12, 0, 1, reply)) == b"\0\0\0\1\0\0"


def test_fields_that_are_left_out_take_the_schemas_default():
    encoded = b"".join(encode_response(3, 9, 1, Reply(topics=[Reply(name="t")])))
    body = decode_response(3, 9, encoded).body
    assert body.controller_id == -1
    assert body.cluster_authorized_operations == -(2**31)
    assert body.topics[0].partitions == ()


def test_numbers_are_taken_for_durations_and_instants():
    as_number = encode_response(22, 0, 1, Reply(throttle_time=1500))
    as_duration = encode_response(22, 0, 1, Reply(throttle_time=timedelta(seconds=1.5)))
    assert as_number == as_duration


def test_a_null_where_none_may_be_is_our_bug():
    with pytest.raises(TypeError):
        encode_response(3, 9, 1, Reply(topics=None))


def test_an_unknown_version_is_an_error():
    with pytest.raises(NoSuchSchema):
        encode_response(3, 99, 1, Reply())


def test_bytes_that_are_no_such_request_are_malformed():
    with pytest.raises(MalformedMessage):
        decode_request(3, 12, b"\xff" * 20, 0)


def test_bytes_behind_a_request_are_ignored():
    encoded = encode_request(12, 0, 1, None, {"group_id": "g", "generation_id": 3})
    assert decode_request(12, 0, encoded + b"tail", 10).generation_id == 3
