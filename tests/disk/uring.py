"""The mark of tests that need io_uring. Container runtimes forbid it to what runs in them."""

from __future__ import annotations

import pytest

needs_uring = pytest.mark.usefixtures("uring")
