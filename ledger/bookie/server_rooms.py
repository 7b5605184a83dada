"""The bounds on bytes that a bookie holds for its clients, shared by its servers."""

from __future__ import annotations

from typing import NamedTuple

from ledger.adapters.links.link_config import LinkServerConfig
from ledger.bookie.answer_room import AnswerRoom
from ledger.bookie.server_streams import InboundWindow


class ServerRooms(NamedTuple):
    """Bounds of one bookie, for all clients of all its servers together."""

    adds: InboundWindow  # bytes of adds that are not durable yet
    answers: AnswerRoom  # bytes of answers to reads that are not written yet

    @classmethod
    def of(cls, config: LinkServerConfig) -> ServerRooms:
        """Return new rooms of the sizes in `config`."""
        answers = AnswerRoom(config.answers_bytes_max, config.answers_wait_s)
        return cls(InboundWindow(config.queue_bytes_max), answers)
