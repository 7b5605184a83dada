"""Goal: a bookie notices whenever its directory may lack what it once acknowledged, and only then.

Method: the simulated disk and metadata tree. Every short history of starts, stops and kills is
played with a copy taken at every point and put back at the end; starts and stops are cut between
any two of their steps; replies are lost by seed; two processes race.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from random import Random

import pytest

from ledger.bookie.identity_file import StartCount
from ledger.errors import BookieIdInUse, ForeignDirectory, MetadataUnavailable
from ledger.ids import BookieId
from ledger.node.identity import BookieIdentity, load_identity
from ledger.registry.cookie import cookie_path
from tests.sim.disk import SimDisk
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

BOOKIE = BookieId("bookie-01234567")
PATH = cookie_path(BOOKIE)
CLUSTER = "cluster-1"


class Cut(Exception):
    """The process ends here."""


STEPS = {"create", "set", "get", "unlink", "sync_directory"}


class Cutting:
    """Passes calls on until its steps are used up. What writes or asks is a step."""

    def __init__(self, inner, steps: list[int]) -> None:
        self._inner = inner
        self._steps = steps

    def __getattr__(self, name):
        if name in STEPS:
            if self._steps[0] == 0:
                raise Cut
            self._steps[0] -= 1
        return getattr(self._inner, name)


def wanted(place: int = 1, **other) -> StartCount:
    return StartCount(CLUSTER, BOOKIE, 0, "stopped", place)._replace(**other)


async def learn(disk, store, place: int = 1, **other) -> BookieIdentity:
    return await load_identity(disk, store, wanted(place, **other), b"cookie")


async def begin(disk, store, place: int = 1) -> BookieIdentity:
    """One start; whether entries may be lost is in `loss`."""
    identity = await learn(disk, store, place)
    await identity.started()
    return identity


def new_disk() -> SimDisk:
    return SimDisk(Random(1))


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(disk._names[name].view) for name in disk.names()}


async def live(disk, tree, end: str) -> None:
    """One run: started, and ended by `end`."""
    store = SimMetadata(tree)
    identity = await begin(disk, store)
    assert identity.loss == ""
    if end == "stop":
        await identity.stopped()
    elif end == "stop without metadata":
        await store.close()
        with pytest.raises(MetadataUnavailable):
            await identity.stopped()


ENDS = ("kill", "stop", "stop without metadata")
HISTORIES = [ends for length in (1, 2, 3) for ends in itertools.product(ENDS, repeat=length)]


@pytest.mark.parametrize("ends", HISTORIES, ids=" ".join)
async def test_no_honest_history_looks_like_a_loss(ends):
    disk, tree = new_disk(), MetadataTree()
    for end in ends:
        await live(disk, tree, end)
    assert (await begin(disk, SimMetadata(tree))).loss == ""


@pytest.mark.parametrize("ends", HISTORIES, ids=" ".join)
async def test_a_copy_shows_that_the_original_ran_after_it_was_made(ends):
    for copied in range(len(ends)):
        disk, tree = new_disk(), MetadataTree()
        for end in ends[:copied]:
            await live(disk, tree, end)
        old = copy.deepcopy(disk)
        for end in ends[copied:]:
            await live(disk, tree, end)
        if copied == 0:
            assert not old.names()  # an empty directory is another bookie
        else:
            assert (await begin(old, SimMetadata(tree), place=2)).loss


@pytest.mark.parametrize("end", ENDS)
async def test_a_copy_of_a_running_directory_shows(end):
    disk, tree = new_disk(), MetadataTree()
    await live(disk, tree, "stop")
    store = SimMetadata(tree)
    identity = await begin(disk, store)
    old = copy.deepcopy(disk)
    if end == "stop":
        await identity.stopped()
    elif end == "stop without metadata":
        await store.close()
        with pytest.raises(MetadataUnavailable):
            await identity.stopped()
    assert (await begin(old, SimMetadata(tree), place=2)).loss


async def test_a_cleanly_stopped_directory_may_move_to_another_disk():
    disk, tree = new_disk(), MetadataTree()
    await live(disk, tree, "stop")
    assert (await begin(copy.deepcopy(disk), SimMetadata(tree), place=2)).loss == ""


async def test_a_missing_cookie_shows_until_a_start_has_dealt_with_it():
    disk, tree = new_disk(), MetadataTree()
    for _ in range(3):
        await live(disk, tree, "stop")
    tree.delete(PATH)
    for _ in range(2):
        assert (await learn(disk, SimMetadata(tree))).loss == "its cookie is missing"
    old = copy.deepcopy(disk)
    await begin(disk, SimMetadata(tree))
    assert (await begin(disk, SimMetadata(tree))).loss == ""
    assert (await begin(old, SimMetadata(tree), place=2)).loss


async def test_a_lost_standing_shows():
    disk, tree = new_disk(), MetadataTree()
    await live(disk, tree, "stop")
    for name in disk.names():
        disk.unlink(name)
    assert "no identity" in (await begin(disk, SimMetadata(tree))).loss
    assert (await begin(disk, SimMetadata(tree))).loss == ""


@pytest.mark.parametrize("crash", ["restart", "crash"], ids=["killed", "power cut"])
@pytest.mark.parametrize("what", ["first start", "start", "stop", "start without cookie"])
async def test_a_cut_at_any_step_is_no_loss_and_the_next_start_goes_on(what, crash):
    async def cut_after(steps: int) -> bool:
        disk, tree = new_disk(), MetadataTree()
        if what != "first start":
            await live(disk, tree, "stop")
            await live(disk, tree, "stop")
        if what == "start without cookie":
            tree.delete(PATH)
        left = [10**6 if what == "stop" else steps]
        try:
            identity = await begin(Cutting(disk, left), Cutting(SimMetadata(tree), left))
            left[0] = steps
            if what == "stop":
                await identity.stopped()
            return False
        except Cut:
            reborn = getattr(disk, crash)()
        after = await learn(reborn, SimMetadata(tree))
        if what != "start without cookie":  # what is lost is in limbo before that count begins
            assert after.loss == "", steps
        await after.started()
        assert (await learn(reborn, SimMetadata(tree))).loss == ""
        return True

    last = 0
    while await cut_after(last):
        last += 1
    assert last > 4


async def test_lost_requests_and_replies_are_never_taken_for_a_rival():
    counted = 0
    for seed in range(150):
        disk, tree = new_disk(), MetadataTree()
        faults = MetadataFaults(Random(seed), unsent=0.2, reply_lost=0.3)
        for _ in range(3):
            try:
                identity = await begin(disk, SimMetadata(tree, faults))
                assert identity.loss == ""
                await identity.stopped()
                counted += 1
            except MetadataUnavailable:
                continue
    assert counted > 100


async def test_of_two_processes_that_start_on_copies_one_is_refused_and_known_by_it():
    refused = 0
    for seed in range(40):
        disk, tree = new_disk(), MetadataTree()
        await live(disk, tree, "stop")
        twin = copy.deepcopy(disk)
        faults = MetadataFaults(Random(seed))
        ended = await asyncio.gather(
            begin(disk, SimMetadata(tree, faults), 1),
            begin(twin, SimMetadata(tree, faults), 2),
            return_exceptions=True,
        )
        losers = [at for at in (0, 1) if type(ended[at]) is not BookieIdentity]
        kinds = {type(e) for e in ended} - {BookieIdentity}
        assert kinds <= {BookieIdInUse}
        assert len(losers) <= 1
        refused += len(losers)
        for at in losers:
            assert (await learn((disk, twin)[at], SimMetadata(tree), place=at + 1)).loss
    assert refused > 10


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"cluster": "cluster-2"}, ["cluster-1", "cluster-2"]),
        ({"bookie": BookieId("other-01234567")}, ["bookie-01234567", "other-01234567"]),
    ],
)
async def test_a_directory_of_another_cluster_or_name_is_refused_and_left_alone(other, words):
    disk, tree = new_disk(), MetadataTree()
    await live(disk, tree, "stop")
    before = contents(disk)
    with pytest.raises(ForeignDirectory) as refused:
        await learn(disk, SimMetadata(tree), **other)
    assert all(word in str(refused.value) for word in words)
    assert contents(disk) == before


async def test_metadata_older_than_the_directory_are_refused_and_it_is_left_alone():
    disk, tree = new_disk(), MetadataTree()
    await live(disk, tree, "stop")
    backup = copy.deepcopy(tree.nodes)
    await live(disk, tree, "stop")
    tree.nodes = backup
    before = contents(disk)
    with pytest.raises(ForeignDirectory, match="older than the data"):
        await learn(disk, SimMetadata(tree))
    assert contents(disk) == before
    tree.delete(PATH)  # what the message says
    assert (await begin(disk, SimMetadata(tree))).loss


async def test_a_log_of_no_known_cluster_is_refused():
    disk = new_disk()
    disk.create("log-0000000000000001").close()
    with pytest.raises(ForeignDirectory, match="no identity file"):
        await learn(disk, SimMetadata())


async def test_a_torn_standing_counts_for_nothing():
    disk, tree = new_disk(), MetadataTree()
    await live(disk, tree, "stop")
    disk.create(f"standing-{9:016x}").write([b"cluster cluster-1\nbook"], 0)
    assert (await begin(disk, SimMetadata(tree))).loss == ""
