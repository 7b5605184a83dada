"""The gRPC library, made quiet first: everything here imports it from this module.

It writes news of connections to stderr unless the environment said otherwise before its import.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
from grpc import aio

__all__ = ["aio", "grpc"]
