"""The versions of the APIs of transactions.

Files `t<key>_<name>.py` have the cases for the part of an API in transactions.
"""

from __future__ import annotations

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
