"""The differences from Apache Kafka 4.3 that are intended, each with its reason.

`docs/kafka-api.md` lists them. A difference that is not here fails the comparison, and so does an
entry that no case shows any more. A reason with `open=True` is not intended: the gateway does not
answer as Kafka does yet.
"""

from __future__ import annotations

import re
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

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.path).replace(r"\[\*\]", r"\[[^\]]*\]"))

    def covers(self, difference: Difference) -> bool:
        """Return True if this entry explains the difference."""
        return (
            self.key == difference.key
            and difference.version in self.versions
            and fnmatchcase(difference.case, self.cases)
            and self._pattern.fullmatch(difference.path) is not None
        )


_FEATURES = "The gateway has no features yet."
_OWN_KEYS = "The gateway's own settings of a topic."
_ELR = "Kafka sets this value for all brokers itself, for its eligible leader replicas."
_TEXTS = "The texts say what a setting does in the gateway."
_EACH_ONCE = "A resource that is named again is described once: a reply of many copies is large."
_AT_ONCE = "The timeout bounds the wait for leaders; Kafka gives up before it looks at the topic."

INTENDED: tuple[Intended, ...] = (
    Intended(18, "supported_features[*]", _FEATURES, range(3, 5), open=True),
    Intended(18, "finalized_features[*]", _FEATURES, range(3, 5), open=True),
    Intended(18, "finalized_features_epoch", _FEATURES, range(3, 5), open=True),
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
        Intended(key, field, _AT_ONCE, cases="a-timeout-of-zero*")
        for key, field in (
            (19, "topics[*].error_code"),
            (19, "topics[*].error_message"),
            (20, "responses[*].error_code"),
            (20, "responses[*].error_message"),
            (37, "results[*].error_code"),
        )
    ),
    *(
        Intended(32, f"results[*].configs[{name}]", _OWN_KEYS)
        for name in ("control.record.interval.ms", "control.record.policy", "gateway.loss.delivery")
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
)


def explanations(difference: Difference) -> list[Intended]:
    """Return the entries that explain a difference."""
    return [each for each in INTENDED if each.covers(difference)]
