"""Warnings that stay true: logged at the start of a process, and each hour from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ledger.log import logger

WARNING_S: Final = 3_600.0


def warn_each_hour(
    loop: asyncio.AbstractEventLoop, text: str, fields: Mapping[str, object] | None = None
) -> None:
    """Log the warning now, and each hour while the loop runs. Without a text, do nothing."""
    if not text:
        return
    logger().warning(text, **(fields or {}))
    loop.call_later(WARNING_S, warn_each_hour, loop, text, fields)
