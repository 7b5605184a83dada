"""Why a cluster of two gateways differs from a single broker, besides `intended.py`."""

from __future__ import annotations

from tests.compat.differential.intended import Intended

_LIMITS = "A client asks each leader with limits of its own."
_SESSIONS = "A client has a fetch session at each leader, and the case has one."
_COPIES = "The default number of copies in a cluster is 3."
_DIRECTORIES = "Each broker shows the directories of the partitions that it leads."
_BYTES = "Gateways do not know the disks of bookies in a cluster."
_REPLICA = "The case takes the first broker for the replica of each partition."

ON_CLUSTER: tuple[Intended, ...] = (
    Intended(1, "responses[*].partitions[*].records[*]", _LIMITS, cases="small-limits-of-two-*"),
    *(
        Intended(1, field, _SESSIONS, cases="a-session*")
        for field in ("error_code", "session_id", "responses[*]")
    ),
    Intended(19, "topics[*].replication_factor", _COPIES, cases="defaults"),
    Intended(34, "results[*].partitions[*].error_code", _DIRECTORIES),
    *(
        Intended(35, field, _DIRECTORIES)
        for field in ("results[*]", "results[*].topics[*]", "results[*].topics[*].partitions[*]")
    ),
    *(Intended(35, f"results[*].{field}", _BYTES) for field in ("total_bytes", "usable_bytes")),
    *(
        Intended(45, f"responses[*].partitions[*].error_{field}", _REPLICA)
        for field in ("code", "message")
    ),
)
