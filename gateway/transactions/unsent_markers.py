"""The place of the sender of markers, which is missing: prepared transactions stay prepared."""

from __future__ import annotations

from gateway.core.transaction_effects import Marker
from gateway.transactions.ports import OnAnswers


class UnsentMarkers:
    """A `MarkerSender` that sends nothing."""

    def send(self, marker: Marker, on_answers: OnAnswers) -> None:
        """See `MarkerSender`."""

    def stop(self, on_answers: OnAnswers) -> None:
        """See `MarkerSender`."""
