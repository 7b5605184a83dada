"""The differences from Apache Kafka 4.3 that are intended, each with its reason.

`docs/kafka-api.md` lists them. A difference that is not here fails the comparison, and so does an
entry that no case shows any more. A reason with `open=True` is not intended: the gateway does not
answer as Kafka does yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from tests.compat.differential.outcome import Difference

ALL = range(100)


@dataclass(frozen=True)
class Intended:
    """Fields that differ, in some versions of an API and in some cases.

    In `path`, `[*]` stands for any row. An empty path stands for a closed connection.
    """

    key: int
    path: str
    reason: str
    versions: range = ALL
    cases: str = "*"
    open: bool = False
    transactions: bool = False
    """Whether it is one of the cases about transactions."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.path).replace(r"\[\*\]", r"\[[^\]]*\]"))

    def covers(self, difference: Difference) -> bool:
        """Return True if this entry explains the difference."""
        return (
            self.key == difference.key
            and self.transactions == difference.transactions
            and difference.version in self.versions
            and fnmatchcase(difference.case, self.cases)
            and self._pattern.fullmatch(difference.path) is not None
        )


_FEATURES = "The gateway does not know this feature."
_FORM = "The gateway's own feature: the newest form of stored data that gateways may write."
_NOT_OFFERED = {
    "eligible.leader.replicas.version": "Copies are on bookies, so no replica is eligible.",
    "kraft.version": "The metadata are in SQLite or ZooKeeper, not in a log of KRaft.",
    "share.version": "The gateway does not serve share groups, so it does not offer them.",
    "streams.version": "The gateway does not serve streams groups, so it does not offer them.",
}
_OWN_KEYS = "The gateway's own settings of a topic."
_ELR = "Kafka sets this value for all brokers itself, for its eligible leader replicas."
_TEXTS = "Each text describes the effect of a setting in the gateway."
_EACH_ONCE = "A resource that is named again is described once: a reply of many copies is large."
_AT_ONCE = "The timeout bounds the wait for leaders; Kafka gives up before it looks at the topic."

_FIXED = "Kafka adds partitions; groups and transactional ids would then map to others."

_CUT = "Kafka cuts the last batch at the limit, and clients drop the part; the gateway does not."
_FETCHED = "responses[*].partitions[*]"
_OF_FETCHED = (
    "error_code",
    "high_watermark",
    "last_stable_offset",
    "log_start_offset",
    "aborted_transactions",
    "records[*]",
)
_WHY = "Kafka gives no text; the gateway says why it refused the batch."
_SHARE = "The gateway does not serve share groups."
_IGNORED = "The gateway ignores the timeout; Kafka gives up before it looks at the topic."
_RE2 = (
    "RE2 and RE2/J differ in nested repetitions, `\\C` and repeated names; patterns have a bound."
)
_NO_NAMES = "Kafka looks up host names; a slow name server would hold the gateway's requests."

INTENDED: tuple[Intended, ...] = (
    *(
        Intended(0, "responses[*].partition_responses[*].error_message", _WHY, range(8, 14), each)
        for each in (
            "a-batch-that-is-cut-short",
            "control-and-transactional-batches",
            "damaged-batches",
            "invalid-acknowledgements",
            "no-records",
            "odd-producers",
            "records-that-are-too-large",
        )
    ),
    *(
        Intended(
            0,
            f"responses[*].partition_responses[*].{field}",
            "Kafka accepts a producer id with the epoch -1, although it cannot check its sequence.",
            range(3, 14),
            "odd-producers",
        )
        for field in ("error_code", "base_offset")
    ),
    *(
        Intended(
            0,
            "responses[*].partition_responses[*].log_start_offset",
            "Kafka refuses these bytes before it looks at the partition.",
            range(5, 14),
            each,
        )
        for each in ("no-records", "damaged-batches")
    ),
    Intended(
        0,
        "responses[*].partition_responses[*].error_code",
        "Kafka fails at an unknown codec; the gateway names it. Magic 3 is an invalid record.",
        range(3, 14),
        "damaged-batches",
    ),
    Intended(
        1,
        "responses[*].partitions[*].records[*]",
        _CUT,
        cases="small-limits",
    ),
    *(
        Intended(
            2,
            f"topics[*].partitions[*].{field}",
            "An unknown isolation level is read as read_uncommitted; Kafka fails.",
            range(4, 12) if field == "leader_epoch" else ALL,
            "an-unknown-isolation-level",
        )
        for field in ("error_code", "offset", "leader_epoch")
    ),
    Intended(9, "groups[*].error_code", _EACH_ONCE, range(8, 11), "many-groups"),
    Intended(9, "groups[*].topics[*]", _EACH_ONCE, range(8, 11), "many-groups"),
    *(
        Intended(10, f"coordinators[*].{field}", _SHARE, range(6, 7), "a-share-group")
        for field in ("error_code", "node_id", "host", "port")
    ),
    Intended(10, "coordinators[*]", _EACH_ONCE, range(4, 7), "many-groups"),
    Intended(15, "groups[*]", _EACH_ONCE, cases="unknown-groups"),
    *(
        Intended(18, f"{field}[{name}]", reason, range(3, 5))
        for field in ("supported_features", "finalized_features")
        for name, reason in _NOT_OFFERED.items()
        if (field, name) != ("finalized_features", "kraft.version")
    ),
    *(
        Intended(18, f"{field}[gateway.version]", _FORM, range(3, 5))
        for field in ("supported_features", "finalized_features")
    ),
    *(
        Intended(19, f"topics[*].configs[{name}]", _OWN_KEYS, range(5, 8))
        for name in ("control.record.interval.ms", "control.record.policy", "gateway.loss.delivery")
    ),
    Intended(
        19,
        "topics[*].configs[min.insync.replicas].config_source",
        _ELR,
        range(5, 8),
    ),
    Intended(57, "error_message", _FEATURES, ALL, "features-that-the-gateway-does-not-have"),
    Intended(
        55,
        "topics[*].partitions[*].leader_epoch",
        "The metadata are in SQLite or ZooKeeper, where no leader has an epoch.",
    ),
    *(
        Intended(
            55,
            f"topics[*].partitions[*].{field}",
            "The metadata are in SQLite or ZooKeeper, not in a log with offsets.",
        )
        for field in ("high_watermark", "current_voters[*].log_end_offset")
    ),
    Intended(
        55,
        "nodes[*].listeners[*]",
        "Gateways are the voters, and have no listener for controllers.",
        range(2, 3),
    ),
    Intended(
        19,
        "topics[*].error_message",
        "Copies are on bookies, so the text names the number of bookies.",
        cases="more-copies-than-brokers",
    ),
    *(
        Intended(key, field, reason, cases="a-timeout-of-zero*")
        for key, field, reason in (
            (19, "topics[*].error_code", _AT_ONCE),
            (19, "topics[*].error_message", _AT_ONCE),
            (20, "responses[*].error_code", _IGNORED),
            (20, "responses[*].error_message", _IGNORED),
            (37, "results[*].error_code", _AT_ONCE),
        )
    ),
    *(
        Intended(32, f"results[*].configs[{name}]", _OWN_KEYS)
        for name in ("control.record.interval.ms", "control.record.policy", "gateway.loss.delivery")
    ),
    *(
        Intended(37, f"results[*].{field}", _FIXED, cases="an-internal-topic")
        for field in ("error_code", "error_message")
    ),
    Intended(32, "results[*].configs[*].documentation", _TEXTS, range(3, 5)),
    Intended(32, "results[*].configs[min.insync.replicas]", _ELR, cases="the-default-of-brokers"),
    Intended(32, "results[*].configs[min.insync.replicas].config_source", _ELR),
    Intended(32, "results[*].configs[min.insync.replicas].synonyms[*]", _ELR),
    Intended(32, "results[*]", _EACH_ONCE, cases="duplicates"),
    *(
        Intended(
            44,
            f"responses[*].error_{field}",
            "Kafka fails without a text; the gateway names the unknown operation.",
            cases="invalid-changes",
        )
        for field in ("code", "message")
    ),
    *(
        Intended(
            44,
            f"responses[*].error_{field}",
            "Kafka fails without a text; the gateway names the unknown operation.",
            cases="loggers",
        )
        for field in ("code", "message")
    ),
    *(
        Intended(49, f"entries[*].error_{field}", _NO_NAMES, cases="host-names")
        for field in ("code", "message")
    ),
    *(
        Intended(
            0,
            "responses[*].partition_responses[*].error_message",
            _WHY,
            range(8, 14),
            case,
            transactions=True,
        )
        for case in ("control-batches", "batches-without-a-producer")
    ),
    *(
        Intended(
            0,
            f"responses[*].partition_responses[*].{field}",
            "Kafka asks the coordinator before it looks at the name; both refuse the batch.",
            range(3, 12),
            "internal-topics",
            transactions=True,
        )
        for field in ("error_code", "error_message")
    ),
    *(
        Intended(
            1,
            path,
            "An unknown isolation level is read as read_uncommitted; Kafka fails.",
            cases="an-unknown-isolation-level",
            transactions=True,
        )
        for path in ("error_code", "responses[*]", *(f"{_FETCHED}.{each}" for each in _OF_FETCHED))
    ),
    Intended(
        1,
        f"{_FETCHED}.aborted_transactions[*]",
        "Kafka also lists transactions that begin behind the records that it returns.",
        cases="small-limits",
        transactions=True,
    ),
    Intended(1, f"{_FETCHED}.records[*]", _CUT, cases="small-limits", transactions=True),
    Intended(
        1,
        f"{_FETCHED}.last_stable_offset",
        "The last stable offset is never below the start of the log; in Kafka it may be.",
        cases="a-deletion-inside-an-open-transaction",
        transactions=True,
    ),
    *(
        Intended(66, field, _RE2, range(2, 3), "the-bounds-of-patterns", transactions=True)
        for field in ("error_code", "transaction_states[*]")
    ),
)


def explanations(difference: Difference, entries: Sequence[Intended] = INTENDED) -> list[Intended]:
    """Return the entries that explain a difference."""
    return [each for each in entries if each.covers(difference)]
