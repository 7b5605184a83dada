"""The standard error of this process, without the log lines of Kafka's clients."""

from __future__ import annotations

import re


def without_clients(text: str) -> str:
    """Leave out librdkafka's lines: a client of an earlier test may miss its broker until now."""
    return re.sub(r"^%\d\|.*\n", "", text, flags=re.MULTILINE)
