"""Goal: an embedded gateway whose `metadata.sqlite` was lost, replaced, emptied or set back refuses
to start, says what to do, and deletes nothing; a directory of an earlier version still starts.

Method: the whole gateway in this process on real files. Each case changes the files between two
starts. The refused start must leave every log as it was, and the right metadata must start again.
One case is a real process, for its exit code and its one line.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
from contextlib import asynccontextmanager, closing

import pytest

from gateway.config import GatewayConfig
from gateway.process.embedded import start_embedded
from gateway.process.embedded_identity import _REMEDY as REMEDY
from ledger.client.accepted_entries import accepted_entries
from ledger.core.loss import CopyAnswer, EntryAwaited, EntryLost
from ledger.errors import ForeignDirectory
from ledger.ids import EntryId
from tests.gateway.test_dev import COMMAND, PORTS
from tests.peers.copies import copy_at_work

pytestmark = pytest.mark.real_loop
START_S_MAX = 60


@asynccontextmanager
async def served(data, **settings):
    running = await start_embedded(GatewayConfig(data=data, port=0, ledger_port=None, **settings))
    try:
        yield running.ctx.partitions._services.client
    finally:
        await running.stop()


async def write_ledger(client, copies=1):
    writer = await client.create(ensemble_size=copies, write_quorum=copies, ack_quorum=copies)
    added = asyncio.get_running_loop().create_future()
    writer.add([b"precious"], added.set_result)
    assert await added is None
    await writer.close()
    return writer.ledger


async def ledger_of_a_session(data, **settings):
    async with served(data, **settings) as client:
        return await write_ledger(client, settings.get("bookies", 1))


async def assert_readable(data, ledger, **settings):
    async with served(data, **settings) as client:
        reader = await client.open(ledger)
        found = await reader.read(EntryId(0), EntryId(0), 100)
        assert found == [(0, b"precious")]


def metadata_of(data):
    return sorted(path for path in data.glob("metadata.sqlite*") if path.suffix != ".lock")


def set_aside(data):
    """Move the metadata away. Returns a function that puts it back."""
    aside = data.with_name(data.name + "-aside")
    aside.mkdir()
    for path in metadata_of(data):
        shutil.move(path, aside / path.name)

    def restore():
        for path in metadata_of(data):
            path.unlink()
        for path in aside.iterdir():
            shutil.move(path, data / path.name)
        aside.rmdir()

    return restore


def backed_up(data, place):
    """What an operator does while the gateway runs: a consistent copy by SQLite itself."""
    source, target = sqlite3.connect(data / "metadata.sqlite"), sqlite3.connect(place)
    with closing(source), closing(target):
        source.backup(target)


def forget_identities(data):
    """Make the directory one that an earlier version wrote."""
    for path in data.glob("bookie-*/standing-*"):
        path.unlink()
    with closing(sqlite3.connect(data / "metadata.sqlite")) as nodes, nodes:
        nodes.execute("DELETE FROM nodes WHERE parent LIKE '/ledgers/cookies%'")
        nodes.execute(
            "DELETE FROM nodes WHERE parent = '/ledgers' AND name IN "
            "('cookies', 'INSTANCEID', 'LAYOUT', 'available')"
        )


def logs(data):
    return {path: path.read_bytes().rstrip(b"\0") for path in data.glob("bookie-*/log-*")}


async def refused(data, words, **settings):
    """The start is refused with `words` and the remedy, and every log is still there."""
    before = logs(data)
    assert before
    with pytest.raises(ForeignDirectory) as refusal:
        async with served(data, **settings):
            pass
    assert words in str(refusal.value)
    assert "restore the newest metadata" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert {path: content for path, content in logs(data).items() if path in before} == before


# -- metadata that is not the bookie's ------------------------------------------------------------


async def test_lost_metadata_is_not_made_anew_beside_bookies_that_have_a_log(tmp_path):
    ledger = await ledger_of_a_session(tmp_path / "d")
    restore = set_aside(tmp_path / "d")
    await refused(tmp_path / "d", "metadata.sqlite is missing beside bookie-1")
    assert not (tmp_path / "d" / "metadata.sqlite").exists()
    restore()
    await assert_readable(tmp_path / "d", ledger)


async def test_metadata_of_another_directory_is_refused(tmp_path):
    ledger = await ledger_of_a_session(tmp_path / "d")
    for _ in range(3):
        await ledger_of_a_session(tmp_path / "other")
    restore = set_aside(tmp_path / "d")
    shutil.copy(tmp_path / "other" / "metadata.sqlite", tmp_path / "d")
    await refused(tmp_path / "d", "metadata.sqlite is of cluster")
    restore()
    await assert_readable(tmp_path / "d", ledger)


async def test_metadata_without_any_ledger_is_refused_beside_a_bookie_with_ledgers(tmp_path):
    ledger = await ledger_of_a_session(tmp_path / "d", bookies=3)
    async with served(tmp_path / "empty"):
        pass
    restore = set_aside(tmp_path / "d")
    shutil.copy(tmp_path / "empty" / "metadata.sqlite", tmp_path / "d")
    await refused(tmp_path / "d", "metadata.sqlite is of cluster", bookies=3)
    restore()
    await assert_readable(tmp_path / "d", ledger, bookies=3)


async def test_a_copy_from_before_the_last_start_is_refused(tmp_path):
    await ledger_of_a_session(tmp_path / "d")
    shutil.copy(tmp_path / "d" / "metadata.sqlite", tmp_path / "backup")
    ledger = await ledger_of_a_session(tmp_path / "d")
    restore = set_aside(tmp_path / "d")
    shutil.copy(tmp_path / "backup", tmp_path / "d" / "metadata.sqlite")
    await refused(tmp_path / "d", "metadata.sqlite is older than bookie-1: it counts 2 starts")
    restore()
    await assert_readable(tmp_path / "d", ledger)


@pytest.mark.parametrize("bookies", [1, 3])
async def test_a_copy_of_the_same_run_is_refused_once_it_lacks_a_ledger(tmp_path, bookies):
    data = tmp_path / "d"
    async with served(data, bookies=bookies) as client:
        await write_ledger(client, bookies)
        backed_up(data, tmp_path / "backup")
        ledger = await write_ledger(client, bookies)
        copy_at_work(data, tmp_path / "killed")  # what kill -9 leaves
    (tmp_path / "killed" / "metadata.sqlite.lock").unlink()
    restore = set_aside(tmp_path / "killed")
    shutil.copy(tmp_path / "backup", tmp_path / "killed" / "metadata.sqlite")
    words = "the metadata is older than bookie-1: its next ledger is"
    await refused(tmp_path / "killed", words, bookies=bookies)
    restore()
    await assert_readable(tmp_path / "killed", ledger, bookies=bookies)


async def test_a_copy_from_before_a_run_that_was_killed_is_refused_though_no_ledger_is_missing(
    tmp_path,
):
    data = tmp_path / "d"
    await ledger_of_a_session(data)
    shutil.copy(data / "metadata.sqlite", tmp_path / "backup")
    async with served(data):
        copy_at_work(data, tmp_path / "killed")
    set_aside(tmp_path / "killed")
    shutil.copy(tmp_path / "backup", tmp_path / "killed" / "metadata.sqlite")
    await refused(tmp_path / "killed", "metadata.sqlite is older than bookie-1")


# -- directories of an earlier version -----------------------------------------------------------


@pytest.mark.parametrize("bookies", [1, 3])
async def test_a_directory_of_an_earlier_version_starts_and_is_guarded_from_then_on(
    tmp_path, bookies
):
    data = tmp_path / "d"
    ledger = await ledger_of_a_session(data, bookies=bookies)
    forget_identities(data)
    shutil.copy(data / "metadata.sqlite", tmp_path / "unguarded")
    await assert_readable(data, ledger, bookies=bookies)
    restore = set_aside(data)
    shutil.copy(tmp_path / "unguarded", data / "metadata.sqlite")
    await refused(data, "metadata.sqlite is of cluster (none)", bookies=bookies)
    restore()
    await assert_readable(data, ledger, bookies=bookies)


async def test_more_bookies_join_after_an_upgrade_with_one(tmp_path):
    data = tmp_path / "d"
    ledger = await ledger_of_a_session(data, bookies=3)
    forget_identities(data)
    await assert_readable(data, ledger)
    await assert_readable(data, ledger, bookies=3)


@pytest.mark.parametrize("upgraded", ["at once", "with one bookie first"])
async def test_bookies_that_were_switched_off_while_their_ledgers_were_deleted_join_again(
    tmp_path, upgraded
):
    """Only a bookie that runs forgets deleted ledgers, and new ledgers name no other bookie."""
    data = tmp_path / "d"
    deleted = await ledger_of_a_session(data, bookies=3)
    async with served(data) as client:
        await client.delete(deleted)
        ledger = await write_ledger(client)
    forget_identities(data)
    if upgraded != "at once":
        await assert_readable(data, ledger)
    await assert_readable(data, ledger, bookies=3)
    ledger = await ledger_of_a_session(data, bookies=3)
    await assert_readable(data, ledger, bookies=3)


@pytest.mark.parametrize("others", [0, 1, 4])
async def test_metadata_of_others_is_refused_beside_a_directory_of_an_earlier_version(
    tmp_path, others
):
    data = tmp_path / "d"
    ledger = await ledger_of_a_session(data)
    forget_identities(data)
    async with served(tmp_path / "other") as client:
        for _ in range(others):
            await write_ledger(client)
    restore = set_aside(data)
    shutil.copy(tmp_path / "other" / "metadata.sqlite", data)
    words = "has ledgers, but none of bookie-1" if others else "the metadata is older than bookie-1"
    await refused(data, words)
    restore()
    await assert_readable(data, ledger)


# -- a bookie's directory that is older than the metadata -----------------------------------------


async def test_an_old_copy_of_a_bookie_admits_that_entries_may_be_lost(tmp_path, capsys):
    data = tmp_path / "d"
    await ledger_of_a_session(data)
    shutil.copytree(data / "bookie-1", tmp_path / "copy")
    ledger = await ledger_of_a_session(data)
    shutil.rmtree(data / "bookie-1")
    shutil.copytree(tmp_path / "copy", data / "bookie-1")
    async with served(data):
        pass
    assert "the directory is an old copy: 2 of 4 starts and stops" in capsys.readouterr().err
    async with served(data, accept_loss=True) as client:
        assert ledger in await client.list_ledgers()
    assert "loss accepted" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["log and index", "index and one log file"])
async def test_a_bookie_without_its_index_denies_nothing_of_closed_ledgers(tmp_path, capsys, lost):
    data = tmp_path / "d"
    ledger = await ledger_of_a_session(data)
    await ledger_of_a_session(data)
    shutil.rmtree(data / "bookie-1" / "index")
    logs = sorted((data / "bookie-1").glob("log-*"))
    for log in logs if lost == "log and index" else logs[:1]:
        log.unlink()
    async with served(data) as client:
        assert "this bookie may have lost entries" in capsys.readouterr().err
        reader = await client.open(ledger)
        with pytest.raises(EntryLost) as error:
            await reader.read(EntryId(0), EntryId(0), 100)
        assert [copy.answer for copy in error.value.copies] == [CopyAnswer.LOST]
    for _ in range(2):  # as after a kill: a rerun finds the same
        async with served(data, accept_loss=True) as client:
            reader = await client.open(ledger)
            assert accepted_entries(reader.metadata) == ((0, 0),)
        assert "loss accepted" in capsys.readouterr().err


async def test_a_copy_that_rotted_is_given_up_when_its_loss_is_accepted(tmp_path, capsys):
    data = tmp_path / "d"
    ledger = await ledger_of_a_session(data)
    [log] = [each for each in (data / "bookie-1").glob("log-*") if b"precious" in each.read_bytes()]
    log.write_bytes(log.read_bytes().replace(b"precious", b"pretious"))
    async with served(data) as client:
        with pytest.raises(EntryAwaited):
            await (await client.open(ledger)).read(EntryId(0), EntryId(0), 100)
    async with served(data, accept_loss=True) as client:
        assert accepted_entries((await client.open(ledger)).metadata) == ((0, 0),)
    assert "loss accepted" in capsys.readouterr().err


async def test_a_bookie_without_its_index_builds_it_from_the_log(tmp_path, capsys):
    data = tmp_path / "d"
    ledger = await ledger_of_a_session(data)
    shutil.rmtree(data / "bookie-1" / "index")
    await assert_readable(data, ledger)
    assert "may have lost" not in capsys.readouterr().err


async def test_an_idle_gateway_starts_again_without_a_loss(tmp_path, capsys):
    for _ in range(3):
        async with served(tmp_path / "d"):
            pass
    assert "may have lost" not in capsys.readouterr().err


# -- the process ----------------------------------------------------------------------------------


def test_the_process_ends_with_78_and_one_line(tmp_path):
    data = tmp_path / "d"
    asyncio.run(ledger_of_a_session(data))
    for path in metadata_of(data):
        path.unlink()
    done = subprocess.run(
        [*COMMAND, "dev", *PORTS, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    assert done.returncode == 78
    line = f"gateway: --data {data}: metadata.sqlite is missing beside bookie-1: {REMEDY}\n"
    assert done.stderr == line
    assert not done.stdout
