"""Load what the first requests of clients need, before the clients send them.

Schemas load at first use, for a quick start: 3 to 15 ms for each version of a request, and 100 ms
for the reader of records. A broker that takes over from a dead one gets the first requests of many
APIs at the same moment, and every client would wait for each of these loads.
"""

from __future__ import annotations

from typing import Final

from gateway.handlers.table import rows
from gateway.wire.messages import request_codec, response_codec
from gateway.wire.record_walk import load_record_reader

# The versions that librdkafka 2 and aiokafka send, by API key. Java's clients send the highest
# ones. A version that is missing here is loaded at its first use.
_SENT: Final = {
    0: (7, 10),
    1: (11, 16),
    2: (3, 7),
    3: (1, 5, 9),
    8: (3, 9),
    9: (3, 7, 9),
    10: (1, 2),
    11: (5,),
    12: (1, 3),
    13: (1,),
    14: (3,),
    18: (0, 3),
    22: (0, 4),
}
_OWN_REPLIES: Final = frozenset((0, 1, 2))  # APIs whose replies are encoded without kio


def preload() -> None:
    """Load the reader of records, and the schemas that stock clients use. Takes about 0.5 s.

    Call it in a thread: each load lets the event loop run after a few milliseconds.
    """
    load_record_reader()
    for key, sent in _SENT.items():
        for version in (*sent, rows()[key].versions[-1]):
            request_codec(key, version)
            if key not in _OWN_REPLIES:
                response_codec(key, version)
