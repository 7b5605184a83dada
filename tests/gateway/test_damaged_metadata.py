"""Goal: one damaged page of an embedded gateway's metadata costs only the streams on that page: the
gateway starts, names them, and serves the others.

Method: the whole gateway in this process on real files. Between two starts, the page of the SQLite
file that holds the nodes of one partition is overwritten.
"""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing

import pytest

from gateway.cluster.port import StreamKey
from gateway.config import GatewayConfig
from gateway.process.embedded import start_embedded
from gateway.topics.partitions import stream_name
from ledger.errors import MetadataUnavailable
from ledger.streams.segment_store import log_root, read_next_epoch

pytestmark = pytest.mark.real_loop
PARTITIONS = 20
DAMAGED = 15  # a partition whose nodes are on one page with those of a few others


@asynccontextmanager
async def served(data):
    running = await start_embedded(GatewayConfig(data=data, port=0, ledger_port=None))
    try:
        yield running.ctx
    finally:
        await running.stop()


def damage(path, text):
    """Overwrite the page of a SQLite file that contains this text."""
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = store.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    page = content.index(text) // size * size
    content[page : page + size] = b"\xff" * size
    path.write_bytes(content)


async def unreadable(ctx, topic):
    """Return the partitions whose epochs the metadata store does not return."""
    found = []
    for index in range(PARTITIONS):
        try:
            await read_next_epoch(
                ctx.partitions._services.metadata, stream_name(topic.topic_id, index)
            )
        except MetadataUnavailable:
            found.append(index)
    return found


async def test_a_gateway_starts_although_a_page_below_a_stream_is_damaged(tmp_path, capsys):
    async with served(tmp_path) as ctx:
        topic = await ctx.catalog.create("orders", PARTITIONS, 1, {})
        for index in range(PARTITIONS):
            await ctx.partitions.find("orders", index).ensure_readable()
    root = log_root(stream_name(topic.topic_id, DAMAGED))
    damage(tmp_path / "metadata.sqlite", f"{root}ledgers".encode())
    capsys.readouterr()
    async with served(tmp_path) as ctx:
        lost = await unreadable(ctx, topic)
        assert DAMAGED in lost
        assert len(lost) < PARTITIONS
        epochs = [
            ctx.partitions.epoch_of(StreamKey(topic.topic_id, index)) for index in range(PARTITIONS)
        ]
        assert epochs == [-1 if index in lost else 0 for index in range(PARTITIONS)]
        await ctx.partitions.find("orders", 0).ensure_readable()
    log = "".join(capsys.readouterr())
    for index in lost:
        assert f"orders-{index}" in log
