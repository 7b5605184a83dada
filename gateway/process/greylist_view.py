"""The greylist of the ledger client, in the terms of the gateway."""

from __future__ import annotations

from gateway.topics.greylist_report import AvoidedBookie, AvoidedBookies
from ledger.client.health import BookieHealth


def avoided_bookies(health: BookieHealth) -> AvoidedBookies:
    """Return the bookies that this process avoids now; if it only observes, would avoid."""
    return AvoidedBookies(
        health.detection.value,
        [
            AvoidedBookie(
                each.found.bookie,
                each.found.reason.value,
                each.since_s,
                each.left_s,
                each.found.why,
            )
            for each in health.greylist()
        ],
    )
