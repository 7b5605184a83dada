"""Provides the logger of `ledger.log`, and its limit on how often one kind of line is logged."""

from __future__ import annotations

from ledger.log import Throttle, logger

__all__ = ["Throttle", "logger"]
