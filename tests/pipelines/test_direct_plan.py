"""Goal: options and filters determine what a direct read looks at; invalid ones are errors.

Method: options as Spark passes them, and plain objects named like pyspark's filters; no Spark.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipelines.direct.checkpoint import StreamOffsets, from_json, to_json
from gateway.pipelines.direct.offsets import PartitionSource, TopicRecreated
from gateway.pipelines.direct.options import EARLIEST, LATEST, OffsetLimit, Options, TlsPaths, parse
from gateway.pipelines.direct.pruning import limit_trigger, pushed_filters
from gateway.pipelines.direct.triggers import Triggers
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.session import REDACTED

BASE = {"metadata": "grpc://127.0.0.1:3181"}


class _Filter(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class EqualTo(_Filter): ...


class GreaterThan(_Filter): ...


class GreaterThanOrEqual(_Filter): ...


class LessThan(_Filter): ...


class LessThanOrEqual(_Filter): ...


class In(_Filter): ...


class Not(NamedTuple):
    child: _Filter


def options(streaming: bool = False, **given: str) -> Options:
    return parse(BASE | {"path": "t"} | given, streaming)


# -- options ---------------------------------------------------------------------------------


def test_a_name_given_to_load_is_the_topic() -> None:
    assert options().topics == ("t",)


def test_names_do_not_depend_on_case() -> None:
    assert parse({"METADATA": "zk", "Subscribe": "b, a,b"}).topics == ("a", "b")


def test_partitions_can_be_assigned() -> None:
    found = parse(BASE | {"assign": '{"t":[2,0]}'}).assigned
    assert found == {"t": (0, 2)}


def test_a_batch_reads_all_that_is_there() -> None:
    found = options()
    assert (found.starting, found.ending) == (OffsetLimit(EARLIEST), OffsetLimit(LATEST))


def test_a_stream_begins_at_the_end() -> None:
    assert options(streaming=True).starting == OffsetLimit(LATEST)


def test_offsets_are_written_as_for_the_kafka_source() -> None:
    found = options(startingOffsets='{"t":{"0":23,"1":-2}}', endingOffsets='{"t":{"0":-1,"1":9}}')
    assert found.starting.offsets == {TopicPartition("t", 0): 23, TopicPartition("t", 1): EARLIEST}
    assert found.ending.offsets == {TopicPartition("t", 0): LATEST, TopicPartition("t", 1): 9}


def test_one_time_takes_precedence_over_times_of_partitions_and_those_over_offsets() -> None:
    times = '{"t":{"0":5}}'
    found = options(startingTimestamp="7", startingOffsetsByTimestamp=times)
    assert found.starting == OffsetLimit(time_ms=7)
    found = options(startingOffsetsByTimestamp=times, startingOffsets="earliest")
    assert found.starting == OffsetLimit(times_ms={TopicPartition("t", 0): 5})


def test_certificates_are_all_given_or_none() -> None:
    files = {"tls.ca": "a", "tls.certificate": "b", "tls.key": "c"}
    assert options(**files).tls == TlsPaths("a", "b", "c")
    with pytest.raises(JobError, match="all three, or none"):
        options(**{"tls.ca": "a"})
    assert options(**files, **{"tls.roles": "off"}).tls == TlsPaths("a", "b", "c", "off")
    with pytest.raises(JobError, match="must be required or off"):
        options(**files, **{"tls.roles": "no"})


def test_the_options_of_the_kafka_source_name_the_certificate_too() -> None:
    kafka = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "/reader.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "... required username=reader password=secret;",
    }
    assert options(**kafka).tls == TlsPaths("/ca.pem", "/reader.pem", "/reader.pem")
    assert options(**kafka | {"kafka.security.protocol": "SASL_PLAINTEXT"}).tls is None
    ours = {"tls.ca": "a", "tls.certificate": "b", "tls.key": "c"}
    assert options(**kafka, **ours).tls == TlsPaths("a", "b", "c")
    assert "secret" not in repr(options(**kafka))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kafka.security.protocol": "TLS"}, "must be PLAINTEXT, SSL"),
        ({"kafka.ssl.keystore.type": "JKS"}, "only PEM is read"),
        ({"kafka.ssl.keystore.location": ""}, "set kafka.ssl.keystore.location and"),
    ],
)
def test_options_of_security_that_cannot_be_used_are_refused(
    change: dict[str, str], message: str
) -> None:
    kafka = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.location": "/reader.pem",
        "kafka.ssl.truststore.location": "/ca.pem",
    }
    with pytest.raises(JobError, match=message):
        options(**kafka | change)


@pytest.mark.parametrize(
    "key",
    [
        *("kafka.sasl.jaas.config", "kafka.ssl.key.password", "kafka.ssl.keystore.key"),
        *("kafka.ssl.keystore.password", "kafka.ssl.truststore.password", "tls.key.password"),
        *("kafka.sasl.client.callback.handler.class", "fs.s3a.access.key", "url"),
    ],
)
def test_options_with_secrets_are_hidden_by_the_session_of_a_job(key: str) -> None:
    assert re.search(REDACTED["spark.sql.redaction.options.regex"], key)


def test_options_without_secrets_are_shown() -> None:
    for pattern in REDACTED.values():
        for key in ("subscribe", "startingOffsets", "metadata", "kafka.security.protocol"):
            assert not re.search(pattern, key)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "no other kafka"),
        ({"subscribe": "u"}, "not path and subscribe"),
        ({"startingOffsets": "latest"}, "a batch would be empty"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "cannot begin a batch"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 of t-0 is below -2"),
        ({"startingOffsets": "{"}, "must be earliest, latest or JSON like"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "must be earliest, latest or JSON like"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "must be earliest, latest or JSON like"),
        ({"endingOffsets": "earliest"}, "nothing would be read"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "is below -1"),
        ({"startingTimestamp": "-4"}, "must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"sliceBytes": "0"}, "must be at least 1"),
        ({"isolation": "strict"}, "read_committed or read_uncommitted"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "error or latest"),
        ({"timestampOutOfRange": "skip"}, "must be fail or null"),
    ],
)
def test_an_invalid_option_is_reported_with_the_valid_values(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(JobError) as refused:
        options(**given)
    assert message in str(refused.value)
    assert refused.value.code == "BAD_OPTION"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "t"}, "metadata is missing"),
        (BASE, "exactly one of"),
        (BASE | {"subscribePattern": "("}, "subscribePattern"),
        (BASE | {"assign": '{"t":[]}'}, "must be JSON like"),
        (BASE | {"assign": '{"t":["0"]}'}, "must be JSON like"),
        (BASE | {"path": "a,,b"}, "must be names of topics"),
    ],
)
def test_a_missing_option_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(JobError, match=message.replace("(", r"\(")):
        parse(given)


def test_a_stream_ends_only_at_ending_offsets() -> None:
    assert options(streaming=True).ending is None
    assert options(streaming=True, endingOffsets="latest").ending == OffsetLimit(LATEST)


# -- filters ---------------------------------------------------------------------------------

RANGE = OffsetRange("t", 1, 100, 200)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], RANGE),
        ([EqualTo(("partition",), 1)], RANGE),
        ([EqualTo(("partition",), 2)], None),
        ([In(("partition",), (0, 3))], RANGE),  # 1 lies between them: only bounds are kept
        ([In(("partition",), (2, 3))], None),
        ([EqualTo(("topic",), "t"), In(("topic",), ("t", "u"))], RANGE),
        ([EqualTo(("topic",), "u")], None),
        ([GreaterThan(("offset",), 149)], RANGE._replace(start=150)),
        ([GreaterThanOrEqual(("offset",), 150)], RANGE._replace(start=150)),
        ([LessThan(("offset",), 150)], RANGE._replace(end=150)),
        ([LessThanOrEqual(("offset",), 150)], RANGE._replace(end=151)),
        ([EqualTo(("offset",), 150)], RANGE._replace(start=150, end=151)),
        ([GreaterThan(("offset",), 150), LessThan(("offset",), 120)], None),
        ([LessThan(("offset",), 100)], None),
        ([Not(EqualTo(("partition",), 1))], RANGE),
        ([EqualTo(("headers", "offset"), 1)], RANGE),
        ([EqualTo(("offset",), None), EqualTo(("offset",), True)], RANGE),
    ],
)
def test_filters_narrow_a_range(filters: list[Any], left: OffsetRange | None) -> None:
    assert pushed_filters(filters).narrowed(RANGE) == left


def test_a_filter_on_time_skips_older_slices() -> None:
    since = datetime(2026, 1, 1, 0, 0, 0, 500, tzinfo=UTC)
    after_ms = int(since.timestamp() * 1000)
    found = pushed_filters([GreaterThanOrEqual(("timestamp",), since)])
    assert not found.may_hold(None, after_ms)  # before the half millisecond
    assert found.may_hold(None, after_ms + 1)
    assert found.may_hold(None, None)


def test_a_filter_on_time_skips_newer_slices() -> None:
    until = datetime(2026, 1, 1, tzinfo=UTC)
    found = pushed_filters([LessThan(("timestamp",), until)])
    assert found.may_hold(int(until.timestamp() * 1000) - 1, None)
    assert not found.may_hold(int(until.timestamp() * 1000), None)


def test_a_time_without_a_zone_prunes_nothing() -> None:
    assert pushed_filters([GreaterThan(("timestamp",), datetime(2026, 1, 1))]) == pushed_filters([])


# -- a trigger's limit -------------------------------------------------------------------------


def test_without_a_limit_a_trigger_goes_to_the_end() -> None:
    assert limit_trigger(None, {}, {TopicPartition("t", 0): 9}) == {TopicPartition("t", 0): 9}


def test_a_limit_is_shared_in_proportion() -> None:
    begin = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 100}
    end = {TopicPartition("t", 0): 300, TopicPartition("t", 1): 200}
    assert limit_trigger(40, begin, end) == {
        TopicPartition("t", 0): 30,
        TopicPartition("t", 1): 110,
    }


places = st.dictionaries(
    st.builds(TopicPartition, st.just("t"), st.integers(0, 9)),
    st.tuples(st.integers(0, 50), st.integers(0, 1000)),
    min_size=1,
)


@given(st.integers(1, 2000), places)
def test_a_limited_trigger_moves_on_and_never_too_far(
    limit: int, ranges: dict[TopicPartition, tuple[int, int]]
) -> None:
    begin = {place: start for place, (start, _) in ranges.items()}
    end = {place: start + size for place, (start, size) in ranges.items()}
    found = limit_trigger(limit, begin, end)
    assert found.keys() == end.keys()
    for place, at in found.items():
        assert begin[place] <= at <= end[place]
        assert (at > begin[place]) == (end[place] > begin[place])
    total = sum(found[place] - begin[place] for place in found)
    assert total <= limit + len(found)


# -- streams ----------------------------------------------------------------------------------


class _Late:
    """A stream's end as bookies report it: at first behind what they reported to another reader."""

    start_sequence_id, end_sequence_id = 0, 5

    async def refresh(self) -> None:
        self.end_sequence_id = 7


class _Partitions:
    """One partition of topic t, whose id is `id`."""

    async def refresh(self) -> dict[TopicPartition, PartitionSource]:
        place = TopicPartition("t", 0)
        return {place: PartitionSource(place, "id", cast("Any", _Late()))}

    async def topics_exist(self) -> bool:
        return True


def triggers(**given: str) -> Triggers:
    return Triggers(cast("Any", _Partitions()), options(streaming=True, **given))


async def test_a_stream_waits_for_the_end_in_its_checkpoint() -> None:
    stream = triggers()
    at = StreamOffsets({TopicPartition("t", 0): 7})
    assert await stream.tasks(at, at) == []  # as Spark does when a query continues
    assert await stream.latest(None, None) == StreamOffsets(at.offsets, {"t": "id"})


async def test_a_topic_recreated_with_fewer_partitions_is_reported() -> None:
    at = StreamOffsets({TopicPartition("t", 0): 7, TopicPartition("t", 1): 3}, {"t": "old"})
    stream = triggers()
    await stream.tasks(at, at)
    with pytest.raises(TopicRecreated, match="its id was old, is id"):
        await stream.latest(None, None)
    stream = triggers(failOnDataLoss="false")
    await stream.tasks(at, at)
    found = await stream.latest(None, None)
    assert found == StreamOffsets({TopicPartition("t", 0): 5}, {"t": "id"})


# -- checkpoints -------------------------------------------------------------------------------


def test_a_checkpoint_is_read_with_and_without_ids_of_topics() -> None:
    places = {TopicPartition("a.b", 10): 5, TopicPartition("a.b", 9): 6, TopicPartition("c", 0): 0}
    position = StreamOffsets(places, {"a.b": "id-1", "gone": "id-2"})
    told = to_json(position)
    assert told == {"a.b": {"9": 6, "10": 5}, "c": {"0": 0}, "a.b@id-1": {}}
    assert from_json(told) == StreamOffsets(places, {"a.b": "id-1"})
    assert from_json({"c": {"0": 1}}) == StreamOffsets({TopicPartition("c", 0): 1})


def test_a_topic_counts_as_recreated_only_if_both_ids_are_known() -> None:
    position = StreamOffsets({}, {"same": "1", "other": "2", "gone": "3"})
    assert position.recreated({"same": "1", "other": "9", "new": "4"}) == ["other"]
    assert StreamOffsets({}).recreated({"t": "1"}) == []
