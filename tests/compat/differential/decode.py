"""Decodes answers with kio, and requires that every byte belongs to the answer."""

from __future__ import annotations

from typing import Any

from gateway.wire.bounds_check import skip_tags
from gateway.wire.schema import response_class
from tests.compat.differential.described import KEY as DESCRIBE_TRANSACTIONS
from tests.compat.differential.described import DescribeTransactionsResponse


class Undecodable(AssertionError):
    """An answer that is not the expected message; the text has its bytes."""


def decoded(key: int, version: int, frame: bytes) -> Any:
    """Return kio's entity of an answer without its size. Raises Undecodable."""
    from kio._kio_native import entity_reader

    entity = response_class(key, version)
    if key == DESCRIBE_TRANSACTIONS:
        entity = DescribeTransactionsResponse
    try:
        start = 4
        if entity.__header_schema__.__flexible__:
            start = skip_tags(frame, start)
        body, size = entity_reader(entity)(frame, start)
    except Exception as error:
        raise Undecodable(f"{entity.__name__}: {error}: {frame.hex()}") from error
    if start + size != len(frame):
        raise Undecodable(
            f"{entity.__name__}: {len(frame) - start - size} bytes left: {frame.hex()}"
        )
    return body
