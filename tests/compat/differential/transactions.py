"""What the gateway serves of Kafka's transactions, and which cases need it.

Files `t<key>_<name>.py` have the cases for an API's part in transactions. The gateway answers them
only with `--preview-transactions`, so they are replayed on a gateway of their own. To let the tests
replay the cases of one more API, add its key to SERVED.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.compat.differential.steps import Batch, Step

SERVED = frozenset({0, 1, 2, 9, 10, 22, 24, 25, 26, 27, 28, 61, 65, 66})
"""The APIs whose part in transactions the gateway serves."""

VERSIONS = {
    0: range(3, 14),
    1: range(4, 19),
    2: range(2, 12),
    9: range(7, 11),
    10: range(1, 7),
    22: range(6),
    24: range(6),
    25: range(5),
    26: range(6),
    27: range(1, 3),
    28: range(6),
    61: range(1),
    65: range(1),
    66: range(3),
}
"""The versions in which Kafka 4.3 serves them; isolation levels come with v4 and v2 of 1 and 2."""
_ONLY = {24, 25, 26, 27, 28, 61, 65, 66}
_TRANSACTIONAL = 0x10


def needed(key: int, steps: Sequence[Step]) -> set[int]:
    """Return the keys whose part in transactions a case of this key needs."""
    return {key} | {step.key for step in steps if _is_transactional(step)}


def is_served(key: int, steps: Sequence[Step]) -> bool:
    """Return True if the gateway serves all that a case needs."""
    return needed(key, steps) <= SERVED


def _is_transactional(step: Step) -> bool:
    if step.key in _ONLY:
        return True
    if step.key not in VERSIONS or not isinstance(step.body, dict):
        return False
    body: dict[str, Any] = step.body
    return (
        body.get("transactional_id") is not None
        or body.get("isolation_level") == 1
        or bool(body.get("require_stable"))
        or (step.key == 10 and body.get("key_type") == 1)
        or any(each.header.get("attributes", 0) & _TRANSACTIONAL for each in _batches(body))
    )


def _batches(value: Any) -> Iterator[Batch]:
    if isinstance(value, Batch):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _batches(each)
