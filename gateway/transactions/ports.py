"""The ports of a transaction coordinator to the rest of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kio.schema.errors import ErrorCode

from gateway.core.transaction_effects import Marker
from gateway.core.transaction_states import TopicPartition

OnAnswers = Callable[[Marker, Mapping[TopicPartition, ErrorCode]], None]
"""Receives a marker that was passed to `send`, and the answers of some of its partitions."""


class FormGate(Protocol):
    """Decides whether data of new forms may be written, such as records of transactions."""

    @property
    def writes_new_forms(self) -> bool: ...

    def begin_new_forms(self) -> None:
        """Open the gate in the background if the levels of features allow it, or log why not."""
        ...

    def level(self, name: str) -> int:
        """Return the finalized level of a feature."""
        ...


class MarkerSender(Protocol):
    """Sends markers to the owners of partitions."""

    def send(self, marker: Marker, on_answers: OnAnswers) -> None:
        """Send the marker until each of its partitions has answered.

        `on_answers` runs one or more times, never inside `send`, and receives each partition once.
        A deleted partition counts as success. The coordinator sends a marker again for partitions
        that answered with a retriable error, so repeated sends for a partition need a pause.
        """
        ...

    def stop(self, on_answers: OnAnswers) -> None:
        """Give up all markers whose answers go to `on_answers`: their coordinator ended.

        The next coordinator sends them again under its own epoch.
        """
        ...
