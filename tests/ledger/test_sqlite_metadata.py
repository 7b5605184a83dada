"""Goal: the embedded store keeps what it acknowledged and refuses what is not its own.

Method: real files, a second process where the promise is about processes. The port itself is
tested in tests/contracts/test_metadata.py.
"""

import asyncio
import sqlite3
import sys
from contextlib import asynccontextmanager

import pytest

from ledger.adapters.sqlite import sqlite_metadata
from ledger.adapters.sqlite.sqlite_metadata import APPLICATION_ID, FORMAT_VERSION, SqliteMetadata
from ledger.adapters.sqlite.sqlite_tree import SqliteTree
from ledger.errors import CorruptFormat, DirectoryInUse, ForeignDirectory, MetadataUnavailable
from ledger.ports.metadata import Node
from tests.peers.processes import Process

pytestmark = pytest.mark.real_loop

CHILD_S_MAX = 60.0
CHILD = """
import asyncio, sys
from pathlib import Path
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata

async def main():
    store = SqliteMetadata(Path(sys.argv[1]))
    await store.create("/mine", ephemeral=True)
    await store.create("/kept", b"acknowledged")
    number = 0
    print("ready", flush=True)
    while True:
        await store.create(f"/kept/{number}")
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@asynccontextmanager
async def open_store(path):
    store = SqliteMetadata(path)
    try:
        yield store
    finally:
        await store.close()


async def test_only_the_owner_may_read_the_files(tmp_path):
    """They have the keys of users, by which a reader can pose as the server."""
    async with open_store(tmp_path / "metadata.db") as store:
        await store.create("/gateway", b"x")
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert {"metadata.db", "metadata.db-wal", "metadata.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}


async def test_what_was_written_is_there_after_a_restart(tmp_path):
    path = tmp_path / "metadata.db"
    async with open_store(path) as store:
        await store.create("/a/b", b"x", parents=True)
        await store.set("/a/b", b"y", 0)
    async with open_store(path) as store:
        assert await store.get("/a/b") == Node(b"y", 1)


async def test_an_acknowledged_change_survives_kill_9_and_ephemeral_nodes_do_not(tmp_path):
    path = tmp_path / "metadata.db"
    with Process([sys.executable, "-c", CHILD, str(path)], tmp_path / "child.log") as child:
        child.wait_output("\n100\n", CHILD_S_MAX)
        child.kill()

    async with open_store(path) as store:
        assert (await store.get("/kept")).data == b"acknowledged"
        assert not await store.exists("/mine")
        assert {int(name) for name in await store.children("/kept")} >= set(range(101))


async def test_a_second_store_on_the_same_file_is_refused_until_the_first_is_closed(tmp_path):
    path = tmp_path / "metadata.db"
    async with open_store(path) as store:
        with pytest.raises(DirectoryInUse, match=r"metadata\.db"):
            SqliteMetadata(path)
        await store.create("/still", b"works")
        await store.get("/still")
    async with open_store(path) as store:
        await store.get("/still")


def test_a_newer_format_is_refused_and_the_file_is_not_touched(tmp_path):
    path = tmp_path / "metadata.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ForeignDirectory, match=f"format {FORMAT_VERSION + 1}"):
        SqliteMetadata(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["metadata.db"]


@pytest.mark.parametrize("content", [b"", b"not a database", b"x" * 8192])
def test_a_foreign_file_is_refused_and_not_touched(tmp_path, content):
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(ForeignDirectory):
        SqliteMetadata(path)
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["metadata.db"]


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "metadata.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    with pytest.raises(ForeignDirectory, match="another program"):
        SqliteMetadata(path)


async def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "metadata.db"

    async with open_store(path) as store:
        await store.create("/a", b"x" * 100_000)
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * (4096 - 100)
    path.write_bytes(content)
    with pytest.raises(CorruptFormat, match=r"metadata\.db"):
        SqliteMetadata(path)


async def test_an_unfinished_first_start_is_begun_again(tmp_path):
    (tmp_path / "metadata.db.new").write_bytes(b"half a file")
    async with open_store(tmp_path / "metadata.db") as store:
        assert await store.create("/a") == "/a"


async def test_concurrent_changes_share_commits(tmp_path):
    async with open_store(tmp_path / "metadata.db") as store:
        await store.create("/a")
        commits = 0

        def on_statement(statement):
            nonlocal commits
            commits += statement == "COMMIT"

        store._writer.set_trace_callback(on_statement)
        await asyncio.gather(*(store.create(f"/a/{i}") for i in range(200)))
        store._writer.set_trace_callback(None)
        assert commits < 100


async def test_an_unexpected_error_fails_its_commit_and_no_other(tmp_path, monkeypatch):
    """Else the writing thread ends, and every later change waits for ever."""
    async with open_store(tmp_path / "m") as store:
        await store.create("/a", b"old")

        def runs_out(connection):
            monkeypatch.setattr(sqlite_metadata, "SqliteTree", SqliteTree)
            raise MemoryError

        monkeypatch.setattr(sqlite_metadata, "SqliteTree", runs_out)
        async with asyncio.timeout(60):
            with pytest.raises(MetadataUnavailable):
                await store.set("/a", b"new", 0)
            assert await store.get("/a") == Node(b"old", 0)
            assert await store.set("/a", b"newer", 0) == 1


async def test_a_closed_store_says_so(tmp_path):
    store = SqliteMetadata(tmp_path / "metadata.db")
    await store.close()
    await store.close()
    with pytest.raises(MetadataUnavailable, match="closed"):
        await store.get("/")
    with pytest.raises(MetadataUnavailable, match="closed"):
        await store.create("/a")


async def test_a_full_file_fails_the_change_and_the_store_goes_on(tmp_path):
    async with open_store(tmp_path / "metadata.db") as store:
        await store.create("/a", b"x")
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(MetadataUnavailable):
            await store.create("/large", b"x" * 100_000)
        store._writer.execute("PRAGMA max_page_count = 1000000")
        await store.create("/large", b"x" * 100_000)
        assert await store.children("/") == ["a", "large"]


async def test_a_cancelled_caller_leaves_the_store_in_order(tmp_path):
    async with open_store(tmp_path / "metadata.db") as store:
        await store.create("/a")
        tasks = [asyncio.ensure_future(store.create(f"/a/{i}")) for i in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == [f"/a/{i}" for i in range(1, 20, 2)]
        await store.create("/b")
