"""A connection to one bookie, as `RemoteBookies` uses it. Each transport has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ledger.adapters.links.client_streams import AddStream, ReadStream
from ledger.ports.bookies import Status


class Endpoint(NamedTuple):
    """A place where a bookie serves a transport."""

    transport: str  # "tcp" or "grpc"
    host: str
    port: int


class Link(Protocol):
    """A connection to one bookie, from the first attempt until it breaks.

    `run` keeps it; other callers use only `adds`, `reads` and `call`, which wait until the bookie
    has sent its identity. When the attempt fails or the connection breaks, all that is pending is
    answered with `refusal` at once.
    """

    endpoint: Endpoint
    adds: AddStream
    reads: ReadStream
    refusal: Status

    @property
    def is_open(self) -> bool:
        """True if the bookie has confirmed its identity and the connection is intact."""
        ...

    @property
    def fences_many(self) -> bool:
        """True if the connection is open, and the bookie takes the control call FenceMany."""
        ...

    @property
    def was_open(self) -> bool:
        """True if the bookie has confirmed its identity, even if the connection broke since."""
        ...

    async def run(self, on_opened: Callable[[], None]) -> None:
        """Connect and serve. Returns after the connection failed or broke and all requests are
        answered.
        """
        ...

    def close(self) -> None:
        """Make `run` answer all pending requests and return soon."""
        ...

    def lacks(self, method: str) -> bool:
        """True if it is known that the bookie does not take this control call.

        Over gRPC that is known after the first call.
        """
        ...

    async def call(self, method: str, request: bytes) -> bytes | None:
        """Send a control call. Returns the answer, or None if no answer came.

        A call that the bookie is known to lack is not sent.
        """
        ...
