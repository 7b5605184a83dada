"""The gRPC library, tamed: everything here imports it from this module.

It writes news of connections to stderr unless the environment said otherwise before its import.
And it ends its machinery whenever the last channel and server of the process are collected, with
a wait for the last operation under way, on the event loop's thread, perhaps for ever.
"""

from __future__ import annotations

import functools
import os
from typing import Any, cast

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
from grpc import aio

__all__ = ["aio", "grpc", "keep_running"]


@functools.cache
def keep_running() -> None:
    """The machinery stays until the process ends. Before the first channel or server is made."""
    cast(Any, aio).init_grpc_aio()  # public, and left out of what type checkers see
