"""The gRPC library, with settings that must precede its import. Import it only from here.

By default gRPC logs connection events to stderr. It also shuts down its machinery whenever the last
channel and server of the process are collected. The shutdown waits for the last operation on the
event loop's thread, possibly forever.
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
    """Keep the machinery until the process ends. Call before creating a channel or server."""
    cast(Any, aio).init_grpc_aio()  # a public function that the type stubs lack
