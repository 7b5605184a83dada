"""Goal: PERMISSION_DENIED counts as unknown and never as absence, wherever a status is interpreted.

Method: the real client, recovery and repair on a simulated cluster whose bookies refuse a host for
a while; nothing is decided meanwhile, and all is right afterwards. The planted mistakes are in
`tests/sim/refusal_mistakes.py`.
"""

import pytest

from gateway.admin.explain import held
from gateway.admin.ledgers import _judge
from ledger.client import reader, recover, tail
from ledger.client.health import UNHEALTHY
from ledger.client.reader import ANSWERS, _answer_of
from ledger.core.loss import CopyAnswer
from ledger.errors import EntryUnknown, LedgerError
from ledger.losses import forced_close
from ledger.ports.bookies import EntriesReply, ReadManyReply, ReadReply, Status
from ledger.repair import entry_copier
from ledger.repair.checker import (
    UNKNOWN_CONTENTS,
    ReplicaContents,
    contents_of,
    fragments_of,
)
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.explain import ReplicaAnswer
from tests.ledger.calm_cluster import cluster, payloads, written

DENIED = Status.PERMISSION_DENIED


async def closed_by(world, host, *, refused):
    """A ledger of five entries whose writer is gone; `host` is refused by these bookies."""
    writer, _ = await written(world, 5)
    world.kill("writer")
    names = sorted(world.bookies)[:refused]
    world.network.denied |= {(host, name) for name in names}
    return writer.ledger


@pytest.mark.parametrize("together_min", [1, 2])
@pytest.mark.parametrize("refused", [2, 3])
async def test_a_recovery_that_is_refused_closes_nothing_and_loses_nothing(refused, together_min):
    world = cluster(failed_bookie_pause_s=0.1)
    world.together_min = together_min
    ledger = await closed_by(world, "taker", refused=refused)
    client = world.client("taker")
    with pytest.raises(EntryUnknown, match="denies it to the role of this certificate"):
        await client.recover(ledger)
    assert not world.metadata_of(ledger).closed
    world.network.mend()
    recovered = await client.recover(ledger)
    assert recovered.last_add_confirmed == 4
    assert len(payloads(await recovered.read(0, 4, 10_000))) == 5


async def test_a_recovery_that_one_bookie_refuses_goes_on_with_the_others():
    world = cluster(bookies=4)
    ledger = await closed_by(world, "taker", refused=1)
    recovered = await world.client("taker").recover(ledger)
    assert recovered.last_add_confirmed == 4


async def test_a_lac_that_is_refused_is_not_known():
    world = cluster()
    ledger = await closed_by(world, "reader", refused=2)
    opened = await world.client("reader").open(ledger)
    with pytest.raises(EntryUnknown):
        await opened.read_lac()
    other = await world.client("other").open(ledger)
    world.network.mend()
    assert await opened.read_lac() == await other.read_lac()


async def test_a_lac_that_took_a_refusal_for_absence_would_be_found(monkeypatch):
    monkeypatch.setattr(reader, "_ABSENT", (*reader._ABSENT, DENIED))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_a_lac_that_is_refused_is_not_known()


async def test_a_refused_read_waits_for_the_entry_and_does_not_lose_it():
    world = cluster()
    writer, _ = await written(world, 5)
    await writer.close()
    world.network.denied |= {("reader", name) for name in world.bookies}
    opened = await world.client("reader").open(writer.ledger)
    with pytest.raises(LedgerError) as raised:
        await opened.read(0, 4, 10_000)
    assert raised.value.retryable
    assert not isinstance(raised.value, reader.EntryLost)
    world.network.mend()
    assert len(await opened.read(0, 4, 10_000)) == 5


async def test_a_refused_survey_leaves_the_contents_unknown():
    world = cluster()
    writer, _ = await written(world, 5)
    await writer.close()
    metadata = world.metadata_of(writer.ledger)
    port, _ = world.connect("auditor")
    world.network.denied |= {("auditor", name) for name in world.bookies}
    config = RepairConfig()
    copier = EntryCopier(
        *(metadata, port, CopyBudget(config.in_flight_bytes_max, 0)),
        *(RepairProgress(), config, world.config),
    )
    for deep in ((), tuple(world.bookies)):
        found = await copier.survey(4, deep)
        assert set(found.values()) == {UNKNOWN_CONTENTS}
    (fragment,) = fragments_of(metadata, 4)
    replicas = dict.fromkeys(world.bookies, UNKNOWN_CONTENTS)
    with pytest.raises(EntryUnknown):
        await copier.copy(fragment.entries, fragment, replicas, "b0")
    assert await copier.end_limbo("b0") is DENIED


async def test_a_repair_that_took_a_refusal_for_absence_would_be_found(monkeypatch):
    def mistaken(reply):
        return ReplicaContents(complete=True) if reply.status is DENIED else contents_of(reply)

    monkeypatch.setattr(entry_copier, "contents_of", mistaken)
    with pytest.raises(AssertionError):
        await test_a_refused_survey_leaves_the_contents_unknown()


def test_no_interpreter_of_a_status_takes_a_refusal_for_absence():
    assert contents_of(EntriesReply(DENIED)) == UNKNOWN_CONTENTS
    assert _answer_of(ReadManyReply(DENIED), []) is CopyAnswer.UNKNOWN
    assert _judge(None, 0, ReadReply(DENIED)) is ReplicaAnswer.SILENT
    assert held(ReadManyReply(DENIED)) == "unknown"
    for absent in (reader._ABSENT, recover._ABSENT, tail._ABSENT, entry_copier._ABSENT):
        assert DENIED not in absent
    assert DENIED not in ANSWERS
    assert DENIED not in forced_close._FENCED
    # A bookie that refuses this process is of no use to it, so others are chosen.
    assert DENIED in UNHEALTHY
