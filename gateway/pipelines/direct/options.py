"""The options of format("ledger"): the Kafka source's options that select records, and new ones.

Pure. An invalid option raises a JobError that shows the valid values. Source: Spark,
KafkaSourceProvider and JsonUtils.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import TopicPartition

EARLIEST, LATEST = -2, -1  # numbers that mean these offsets, also in JSON

SLICE_BYTES = 128 * 1024 * 1024

_OURS = (
    *("metadata", "path", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders"),
    *("maxOffsetsPerTrigger", "sliceBytes", "kafka.isolation.level", "isolation", "acceptedLoss"),
    "timestampOutOfRange",
    *("tls.ca", "tls.certificate", "tls.key", "tls.roles", "bookieTransport"),
    *("kafka.security.protocol", "kafka.ssl.keystore.location", "kafka.ssl.truststore.location"),
    *("zookeeper.auth", "zookeeper.sasl.mechanism", "zookeeper.ssl.client.enable"),
    "zookeeper.ssl.truststore.location",
    *("zookeeper.ssl.keystore.location", "zookeeper.ssl.keystore.password"),
)
_SECURITY = ("kafka.security.protocol", "kafka.ssl.", "kafka.sasl.")
"""Names of the Kafka source's options about security. Those that are not in `_OURS` do nothing
here, so that one set of options serves both sources.
"""

_KEYSTORE, _TRUSTSTORE = "kafka.ssl.keystore.location", "kafka.ssl.truststore.location"
_STORE_TYPES = ("kafka.ssl.keystore.type", "kafka.ssl.truststore.type")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ISOLATION = ("kafka.isolation.level", "isolation")
_KNOWN = {name.lower(): name for name in _OURS}

T = TypeVar("T")


class OffsetLimit(NamedTuple):
    """The start or end of a read: a time, or offsets. `offset` applies to all partitions."""

    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] | None = None


class TlsPaths(NamedTuple):
    """Paths of PEM files, for bookies that require client certificates.

    The certificate has the role of a reader. `roles` is "off" while bookies have no roles yet.
    """

    ca: str
    certificate: str
    key: str
    roles: str = "required"


class StorageAddress(NamedTuple):
    """A storage, the files that its bookies require, and the transport by which to reach them."""

    metadata: str
    tls: TlsPaths | None = None
    transport: str = "tcp"
    zookeeper: tuple[tuple[str, str], ...] = ()  # keys of the identity and the TLS there


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed options. Exactly one of `topics`, `pattern` and `assigned` is set."""

    metadata: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    starting: OffsetLimit
    ending: OffsetLimit | None = OffsetLimit(LATEST)  # None means a stream without an end
    latest_where_no_time: bool = False  # start at the end if every record is older
    fail_on_data_loss: bool = True
    skip_accepted: bool = False  # pass accepted losses in silence, whatever the topic is set to
    committed: bool = False  # leave out open and aborted transactions
    null_timestamps: bool = False  # rows without those timestamps that Spark cannot represent
    include_headers: bool = False
    offsets_per_trigger_max: int | None = None
    slice_bytes: int = SLICE_BYTES
    tls: TlsPaths | None = None
    transport: str = "tcp"
    zookeeper: tuple[tuple[str, str], ...] = ()

    @property
    def storage(self) -> StorageAddress:
        """The storage that is read, and how to reach it."""
        return StorageAddress(self.metadata, self.tls, self.transport, self.zookeeper)


def parse(given: Mapping[str, str], streaming: bool = False) -> Options:
    """Parse the options of a read. Raises JobError."""
    texts = _recognized(given)
    if not texts.get("metadata"):
        raise _fault(
            "metadata is missing: set it to zk://HOST:PORT/CHROOT of a cluster or"
            " grpc://127.0.0.1:3181 of `gateway dev`"
        )
    topics, pattern, assigned = _subscription(texts)
    strategy = texts.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise _fault(f"startingOffsetsByTimestampStrategy {strategy!r}: must be error or latest")
    accepted = texts.get("acceptedLoss", "topic").lower()
    if accepted not in ("topic", "skip"):
        raise _fault(f"acceptedLoss {accepted!r}: must be topic or skip")
    transport = texts.get("bookieTransport", "tcp").lower()
    if transport not in ("tcp", "grpc"):
        raise _fault(f"bookieTransport {transport!r}: must be tcp or grpc")
    beyond = texts.get("timestampOutOfRange", "fail").lower()
    if beyond not in ("fail", "null"):
        raise _fault(f"timestampOutOfRange {beyond!r}: must be fail or null")
    return Options(
        metadata=texts["metadata"],
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_starting(texts, streaming),
        ending=_ending(texts, streaming),
        latest_where_no_time=strategy == "latest",
        fail_on_data_loss=_flag(texts, "failOnDataLoss", True),
        skip_accepted=accepted == "skip",
        committed=_is_committed(texts),
        null_timestamps=beyond == "null",
        include_headers=_flag(texts, "includeHeaders", False),
        offsets_per_trigger_max=_optional(texts, "maxOffsetsPerTrigger", _positive),
        slice_bytes=_optional(texts, "sliceBytes", _positive) or SLICE_BYTES,
        tls=_tls(texts),
        transport=transport,
        zookeeper=_zookeeper(texts),
    )


def _is_committed(texts: Mapping[str, str]) -> bool:
    """Return whether the isolation level is read_committed. Either name of the option will do."""
    given = {name: texts[name] for name in _ISOLATION if name in texts}
    for name, level in given.items():
        if level not in ("read_committed", "read_uncommitted"):
            raise _fault(f"{name} {level!r}: must be read_committed or read_uncommitted")
    if len(set(given.values())) > 1:
        raise _fault(f"{' and '.join(_ISOLATION)} differ: set one of them")
    return "read_committed" in given.values()


def _recognized(given: Mapping[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, text in given.items():
        known = _KNOWN.get(name.lower())
        if known is not None:
            texts[known] = text
        elif name.lower() in _STORE_TYPES and text.upper() != "PEM":
            raise _fault(f"{name} {text!r}: only PEM is read; convert the store")
        elif not name.lower().startswith(_SECURITY):
            raise _fault(_unknown(name))
    return texts


def _unknown(name: str) -> str:
    if name.lower().startswith("kafka."):
        known = "it knows kafka.isolation.level and those of security, and no other kafka.* option"
        return f"option {name!r}: this source reads from bookies; {known}"
    near = difflib.get_close_matches(name.lower(), _KNOWN, 1, 0.5)
    hint = f"; did you mean {_KNOWN[near[0]]!r}?" if near else f"; known are {', '.join(_OURS)}"
    return f"unknown option {name!r}{hint}"


def _subscription(
    texts: Mapping[str, str],
) -> tuple[tuple[str, ...], str, dict[str, tuple[int, ...]]]:
    ways = [way for way in ("path", "subscribe", "subscribePattern", "assign") if way in texts]
    if len(ways) != 1:
        given = " and ".join(ways) if ways else "none"
        raise _fault(
            f"set exactly one of load(TOPIC), subscribe, subscribePattern and assign, not {given}"
        )
    way, text = ways[0], texts[ways[0]]
    if way == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise _fault(f"subscribePattern {text!r}: {error}") from None
        return (), text, {}
    if way == "assign":
        return (), "", _assigned(text)
    names = tuple(sorted({name.strip() for name in text.split(",")}))
    if not all(names):
        raise _fault(f"{way} {text!r}: must be names of topics, separated by commas")
    return names, "", {}


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    shape = 'must be JSON like {"topic":[0,1]}'
    assigned = _object(text, f"assign: {shape}")
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in assigned.items():
        whole = isinstance(partitions, list) and all(
            type(each) is int and each >= 0 for each in cast("list[Any]", partitions)
        )
        if not whole or not partitions:
            raise _fault(f"assign: {shape}")
        found[topic] = tuple(sorted(set(cast("list[int]", partitions))))
    if not found:
        raise _fault(f"assign: {shape}")
    return found


def _starting(texts: Mapping[str, str], streaming: bool) -> OffsetLimit:
    by_time = _by_time(texts, "starting")
    if by_time is not None:
        return by_time
    text = texts.get("startingOffsets", "latest" if streaming else "earliest").strip()
    if text.lower() == "earliest":
        return OffsetLimit(EARLIEST)
    if text.lower() == "latest":
        if not streaming:
            raise _fault("startingOffsets latest: a batch would be empty; leave it out")
        return OffsetLimit(LATEST)
    offsets = _places(text, "startingOffsets", EARLIEST)
    if not streaming and LATEST in offsets.values():
        raise _fault("startingOffsets: -1 (latest) cannot begin a batch")
    return OffsetLimit(offsets=offsets)


def _ending(texts: Mapping[str, str], streaming: bool) -> OffsetLimit | None:
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    if streaming and not any(name in texts for name in names):
        return None
    by_time = _by_time(texts, "ending")
    if by_time is not None:
        return by_time
    text = texts.get("endingOffsets", "latest").strip()
    if text.lower() == "latest":
        return OffsetLimit(LATEST)
    if text.lower() == "earliest":
        raise _fault("endingOffsets earliest: nothing would be read")
    return OffsetLimit(offsets=_places(text, "endingOffsets", LATEST))


def _by_time(texts: Mapping[str, str], edge: str) -> OffsetLimit | None:
    """Parse a time option. A time for all partitions takes precedence, as in the Kafka source."""
    time_ms = _optional(texts, f"{edge}Timestamp", _count)
    if time_ms is not None:
        return OffsetLimit(time_ms=time_ms)
    name = f"{edge}OffsetsByTimestamp"
    if name not in texts:
        return None
    return OffsetLimit(times_ms=_places(texts[name], name, 0))


def _places(text: str, name: str, lowest: int) -> dict[TopicPartition, int]:
    words = "earliest, latest or " if name == "startingOffsets" else ""
    words = "latest or " if name == "endingOffsets" else words
    shape = f'{name}: must be {words}JSON like {{"topic":{{"0":23,"1":-1}}}}'
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _object(text, shape).items():
        if not isinstance(partitions, dict):
            raise _fault(shape)
        for partition, number in cast("dict[str, Any]", partitions).items():
            if not partition.isascii() or not partition.isdigit() or type(number) is not int:
                raise _fault(shape)
            if number < lowest:
                raise _fault(f"{name}: {number} of {topic}-{partition} is below {lowest}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _object(text: str, message: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _fault(message)
    return cast("dict[str, Any]", value)


def _flag(texts: Mapping[str, str], name: str, default: bool) -> bool:
    text = texts.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise _fault(f"{name} {text!r}: must be true or false")
    return text == "true"


def _optional(texts: Mapping[str, str], name: str, make: Callable[[str, str], T]) -> T | None:
    return make(name, texts[name]) if name in texts else None


def _count(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise _fault(f"{name} {text!r}: must be a whole number, not below 0")
    return number


def _positive(name: str, text: str) -> int:
    number = _count(name, text)
    if not number:
        raise _fault(f"{name} {text!r}: must be at least 1")
    return number


def _tls(texts: Mapping[str, str]) -> TlsPaths | None:
    """Return the certificate for bookies, by our options or by those of the Kafka source."""
    names = ("tls.ca", "tls.certificate", "tls.key")
    roles = texts.get("tls.roles", "required").lower()
    if roles not in ("required", "off"):
        raise _fault(f"tls.roles {roles!r}: must be required or off")
    given = [name for name in names if texts.get(name)]
    if not given:
        return _kafka_tls(texts, roles)
    if len(given) < len(names):
        raise _fault(f"{', '.join(names)}: set all three, or none")
    ca, certificate, key = (texts[name] for name in names)
    return TlsPaths(ca, certificate, key, roles)


def _kafka_tls(texts: Mapping[str, str], roles: str) -> TlsPaths | None:
    """Return the certificate by the names of Kafka: one PEM file has key and certificate."""
    protocol = texts.get("kafka.security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise _fault(f"kafka.security.protocol {protocol!r}: must be {', '.join(_PROTOCOLS)}")
    keystore, truststore = texts.get(_KEYSTORE), texts.get(_TRUSTSTORE)
    if not protocol.endswith("SSL") or not (keystore or truststore):
        return None
    if not (keystore and truststore):
        raise _fault(
            f"bookies need a certificate: set {_KEYSTORE} and {_TRUSTSTORE} (PEM), or tls.ca, "
            "tls.certificate and tls.key"
        )
    return TlsPaths(truststore, keystore, keystore, roles)


def _zookeeper(texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the keys of ZooKeeper, after a check. Secrets are only named: file: or env:."""
    from ledger.command_line.zookeeper_settings import SecurityFault, security_of_keys

    keys = {name: text for name, text in texts.items() if name.startswith("zookeeper.")}
    try:
        _ = security_of_keys(keys)
    except SecurityFault as fault:
        raise _fault(str(fault)) from None
    return tuple(sorted(keys.items()))


def _fault(message: str) -> JobError:
    return JobError(message, "BAD_OPTION")
