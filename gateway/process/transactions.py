"""Assembles what a process needs to coordinate transactions. Only with the preview."""

from __future__ import annotations

from gateway.core.topic_names import TRANSACTION_STATE
from gateway.handlers.api import Context
from gateway.transactions.coordinators import TransactionCoordinators
from gateway.transactions.unsent_markers import UnsentMarkers


def add_transactions(ctx: Context) -> None:
    """Let this process coordinate transactions, from the start of its partitions on."""
    ctx.transactions = TransactionCoordinators(
        ctx.catalog,
        ctx.partitions,
        ctx.clock,
        ctx.producer_ids,
        UnsentMarkers(),
        ctx.config.transaction,
        ctx.features,
    )
    ctx.partitions.hosts[TRANSACTION_STATE] = ctx.transactions
