"""The port by which a partition asks the coordinator of a transaction about a producer."""

from __future__ import annotations

import asyncio
from typing import Protocol

from kio.schema.errors import ErrorCode


class Verifier(Protocol):
    """Asks the coordinator of a transactional id, in this process or at another broker."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        topic: str,
        index: int,
        *,
        adds: bool,
    ) -> asyncio.Future[ErrorCode]:
        """Ask whether the partition is in the ongoing transaction of the producer.

        With `adds` (protocol 2) the coordinator adds the partition first. The result is the code of
        the coordinator, or a retriable code if it could not be asked. The future never fails.
        """
        ...
