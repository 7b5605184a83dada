"""Owners of one stream on a simulated cluster, and its stored metadata."""

from contextlib import asynccontextmanager

import pytest

from ledger.client import metadata_format
from ledger.core.segments import decode_segment
from ledger.errors import LedgerError
from ledger.streams.segment_store import log_root
from tests.ledger.calm_cluster import cluster
from tests.ledger.follow_rig import NAME, FollowRig, Owner

LEDGERS = f"{log_root(NAME)}/ledgers"
WHOLE = 1 << 20


@asynccontextmanager
async def watched_rig(**config):
    rig = await FollowRig(cluster(), **config).start()
    watch_in_progress(rig)
    yield rig
    assert rig.in_progress_max <= 2


def watch_in_progress(rig):
    """Record the greatest number of segments that are in progress at once."""
    rig.in_progress_max = 0

    def on_set(path, data, version):
        names = [p for p in rig.world.tree.nodes if p.startswith(f"{LEDGERS}/inprogress_")]
        rig.in_progress_max = max(rig.in_progress_max, len(names))

    listen(rig.world.tree, "on_set", on_set)


def listen(hub, name, heard):
    """Call `heard` too when `hub.name` is called."""
    told = getattr(hub, name)

    def tell(*args):
        told(*args)
        heard(*args)

    setattr(hub, name, tell)


async def taking_over(rig, host):
    """Return an owner that has just taken over the stream."""
    owner = Owner(rig, host)
    await owner.stream.open(begin=True)
    if not owner.stream.writable:  # there was no segment in progress
        await owner.stream.begin()
    return owner


def stored(rig):
    nodes = rig.world.tree.nodes
    return {path: (r.data, r.version) for path, r in nodes.items() if path.startswith("/streams")}


def listed(rig):
    """Return the stored segments, by number."""
    nodes = rig.world.tree.nodes
    found = [
        decode_segment(r.data, where=p) for p, r in nodes.items() if p.startswith(LEDGERS + "/")
    ]
    return sorted(found, key=lambda segment: segment.number)


def has_ledger(rig, ledger):
    return metadata_format.ledger_path(ledger) in rig.world.tree.nodes


async def everything(owner):
    """Return the data by sequence id, from the start to the end."""
    stream, found = owner.stream, {}
    at = stream.start_sequence_id
    while at < stream.end_sequence_id:
        for record in await stream.read(at, WHOLE):
            found[record.sequence_id] = b"".join(record.data)
            at = record.end_sequence_id
    return found


def answered(*owners, start=0):
    return {at: data for owner in owners for data, at in owner.answers.items() if at >= start}


async def fails(work):
    with pytest.raises(LedgerError) as failure:
        await work
    return failure.value
