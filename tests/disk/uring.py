"""The mark of tests that need io_uring. Container runtimes forbid it to what runs in them."""

from __future__ import annotations

import pytest

from ledger.adapters.posix.uring import why_unavailable

_REASON = why_unavailable()
needs_uring = pytest.mark.skipif(_REASON is not None, reason=f"io_uring: {_REASON}")
