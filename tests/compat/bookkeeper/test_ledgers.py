"""Goal: Apache BookKeeper and this ledger tier read each other's ledgers: metadata, ids, entries.

Method: Apache BookKeeper 4.17's own classes, in Java, on the same ZooKeeper; what one side writes
the other reads, field by field.
"""

import random
from dataclasses import replace

import pytest

from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.metadata_format import decode, encode, ledger_path
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.entry_format import DigestType, EntryFormat, master_key, read_header
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import CorruptFormat
from ledger.registry.layout import LONG_ID_GENERATOR, init_layout
from ledger.registry.ledger_ids import next_ledger_id
from tests.compat.bookkeeper.java import JavaError

# What Java's enum of its API calls the digest types of the stored format.
JAVA_DIGEST = {"CRC32": "CRC32", "HMAC": "MAC", "CRC32C": "CRC32C", "DUMMY": "DUMMY"}

OPEN = LedgerMetadata(
    ledger=0,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(0, ("b1-0a1b2c3d", "10.0.0.2:3181", "b3_x.example")),),
    created_ms=1_700_000_000_123,
    custom={"wanted": b"\x00\xff", "ü": b""},
    password=b"secret\x00",
    token=-(2**63),
)
MANY_FRAGMENTS = OPEN.with_ensemble(12, ("b4", "b2", "b3")).with_ensemble(2**62, ("b4", "b5", "b3"))
EXAMPLES = {
    "open": OPEN,
    "in recovery": OPEN.in_recovery(),
    "closed": OPEN.close(41, 2**40),
    "closed and empty": OPEN.close(-1, 0),
    "many fragments": MANY_FRAGMENTS,
    "striped": replace(OPEN, write_quorum=2, custom={}, token=5),
    "long id": replace(MANY_FRAGMENTS, ledger=2**31 - 1).in_recovery(),
    "longest id": replace(OPEN, ledger=2**63 - 1),
    **{str(kind): replace(OPEN, digest_type=kind) for kind in DigestType},
}


def as_java_says(value):
    """What Java shows of a ledger, given what we hold of it."""
    closed = value.state is LedgerState.CLOSED
    shown = {
        "ledger": value.ledger,
        "format": value.format_version,
        "ensemble_size": value.ensemble_size,
        "write_quorum": value.write_quorum,
        "ack_quorum": value.ack_quorum,
        "state": value.state.name,
        "last_entry": value.last_entry if closed else -1,
        "length": value.length,
        "digest_type": JAVA_DIGEST[value.digest_type.name],
        "password": value.password.hex(),
        "created_ms": value.created_ms,
        "token": value.token,
        "custom": {key: data.hex() for key, data in value.custom.items()},
        "fragments": [[first, list(ensemble)] for first, ensemble in value.fragments],
    }
    if value.format_version == 1:  # it has no password, so Java shows none
        del shown["digest_type"], shown["password"]
    return shown


@pytest.mark.parametrize("name", EXAMPLES)
def test_java_reads_the_metadata_that_we_stored(cluster, name):
    value = EXAMPLES[name]

    async def write(store):
        await init_layout(store, lambda: "an-id")
        assert await LedgerMetadataStore(store, LedgerClientConfig()).create(value)

    cluster.run(write)
    assert cluster.ask("metadata.read", ledger=value.ledger) == as_java_says(value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_we_read_the_metadata_that_java_stored(cluster, name):
    value = EXAMPLES[name]
    cluster.run(lambda store: init_layout(store, lambda: "an-id"))
    cluster.ask("metadata.create", **as_java_says(value))

    async def read(store):
        return await LedgerMetadataStore(store, LedgerClientConfig()).read(value.ledger)

    stored = cluster.run(read)
    # Java draws the token itself when it creates.
    assert replace(stored.metadata, token=value.token) == value
    assert stored.version == 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_both_sides_write_the_same_bytes(java, name):
    value = replace(EXAMPLES[name], custom={"wanted": b"\x00\xff"})
    theirs = java.ask("metadata.serialize", **as_java_says(value))
    assert encode(value).hex() == theirs


def old(value, version):
    """`value` as far as a version before 3 can hold it."""
    value = replace(value, format_version=version, token=0)
    if version == 2:
        return replace(value, custom={"wanted": b"\x00\xff"})
    crc32 = DigestType.CRC32
    value = replace(value, digest_type=crc32, password=b"", custom={}, created_ms=-1)
    return replace(value, ack_quorum=value.write_quorum)


@pytest.mark.parametrize("name", ["open", "in recovery", "closed", "many fragments", "long id"])
@pytest.mark.parametrize("version", [1, 2])
def test_older_formats_pass_both_ways_and_stay_what_they_are(java, name, version):
    value = old(EXAMPLES[name], version)
    theirs = bytes.fromhex(java.ask("metadata.serialize", **as_java_says(value)))
    ours = decode(theirs, value.ledger)
    assert ours.format_version == version
    assert replace(ours, token=0, created_ms=value.created_ms) == value
    assert java.ask("metadata.parse", hex=encode(ours).hex(), ledger=value.ledger) == as_java_says(
        value
    )


def test_java_closes_our_ledger_by_compare_and_set_and_we_see_it(cluster):
    async def write(store):
        await init_layout(store, lambda: "an-id")
        await LedgerMetadataStore(store, LedgerClientConfig()).create(MANY_FRAGMENTS)

    async def read(store):
        return await LedgerMetadataStore(store, LedgerClientConfig()).read(0)

    cluster.run(write)
    cluster.ask("metadata.close", ledger=0, last=2**62 + 3, length=99)
    stored = cluster.run(read)
    # Java forgets the token at its first update.
    assert stored.metadata == replace(MANY_FRAGMENTS, token=0).close(2**62 + 3, 99)
    assert stored.version == 1


def test_both_sides_list_the_same_ledgers_and_nothing_else(cluster):
    ledgers = [0, 1, 9_999, 10_000, 2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1]

    async def write(store):
        await init_layout(store, lambda: "an-id")
        await next_ledger_id(store)
        await store.create(f"{LONG_ID_GENERATOR}/HOB-0000000001", parents=True)
        metadata = LedgerMetadataStore(store, LedgerClientConfig())
        for ledger in ledgers:
            await metadata.create(replace(OPEN, ledger=ledger))

    async def listed(store):
        return await LedgerClient(store, None, SystemClock()).list_ledgers()

    cluster.run(write)
    cluster.ask("missing.mark", ledger=10_000, replicas=["b1"])
    assert cluster.ask("metadata.list") == ledgers
    assert cluster.run(listed) == ledgers


def test_no_id_is_given_by_both(cluster):
    cluster.run(lambda store: init_layout(store, lambda: "an-id"))

    async def take(store):
        ids = []
        for _ in range(5):
            ids += [await next_ledger_id(store), *cluster.ask("cluster.ids", count=2)]
        return ids

    given = cluster.run(take)
    assert given == list(range(15))


@pytest.mark.parametrize("highs", [[], [1], [2, 3]])
def test_no_long_id_is_given_by_both(cluster, highs):
    async def take(store):
        await init_layout(store, lambda: "an-id")
        await store.create(LONG_ID_GENERATOR)
        for high in highs:
            await store.create(f"{LONG_ID_GENERATOR}/HOB-{high:010d}")
        ids = []
        for _ in range(3):
            ids += [*cluster.ask("cluster.ids", count=2), await next_ledger_id(store)]
        return ids

    start = max(highs, default=1) << 32
    assert cluster.run(take) == list(range(start, start + 9))


def test_after_our_overflow_java_goes_on_where_it_was_and_ids_stay_apart(cluster):
    """Java keeps in memory that ids are short; it learns of long ones at its own overflow."""

    async def take(store):
        await init_layout(store, lambda: "an-id")
        before = cluster.ask("cluster.ids", count=2)
        await store.create(LONG_ID_GENERATOR)
        ours = [await next_ledger_id(store) for _ in range(2)]
        return before, ours, cluster.ask("cluster.ids", count=2)

    high = 1 << 32
    assert cluster.run(take) == ([0, 1], [high, high + 1], [2, 3])


def draws():
    draw = random.Random(3)
    for size in (0, 1, 4096):
        yield draw.randbytes(size), draw.randrange(2**63), draw.randrange(2**62)


@pytest.mark.parametrize("password", [b"", b"a\x00secret"])
@pytest.mark.parametrize("kind", DigestType)
def test_each_side_verifies_the_entries_of_the_other(java, kind, password):
    packer = EntryFormat(kind, password)
    about = {"digest_type": kind.name, "password": password.hex()}
    for payload, ledger, entry in draws():
        lac, length = entry - 1, entry + len(payload)
        ours = packer.pack(ledger, entry, lac, length, [payload]) + payload
        names = about | {"ledger": ledger, "entry": entry}
        theirs = java.ask("entry.pack", **names, lac=lac, length=length, payload=payload.hex())
        assert ours.hex() == theirs
        read = {"payload": payload.hex(), "lac": lac, "length": length}
        assert java.ask("entry.unpack", **names, hex=ours.hex()) == read
        assert packer.unpack(bytes.fromhex(theirs), ledger, entry) == payload
        assert read_header(bytes.fromhex(theirs)) == (ledger, entry, lac, length)


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C])
@pytest.mark.parametrize("place", [17, 33, -1])
def test_neither_side_takes_an_entry_with_a_flipped_bit(java, kind, place):
    packer = EntryFormat(kind, b"secret")
    entry = bytearray(packer.pack(5, 9, 8, 30, [b"payload"]) + b"payload")
    entry[place] ^= 1
    with pytest.raises(CorruptFormat):
        packer.unpack(entry, 5, 9)
    about = {"digest_type": kind.name, "password": b"secret".hex(), "ledger": 5, "entry": 9}
    with pytest.raises(JavaError, match="DigestMatch"):
        java.ask("entry.unpack", **about, hex=entry.hex())


@pytest.mark.parametrize("password", [b"", b"passwd", bytes(range(256))])
def test_both_sides_make_the_same_master_key(java, password):
    assert java.ask("entry.key", password=password.hex()) == master_key(password).hex()


def test_the_path_of_a_ledger_is_where_java_looks(cluster):
    value = replace(OPEN, ledger=(7 << 32) + 5)

    async def write(store):
        await init_layout(store, lambda: "an-id")
        await store.create(ledger_path(value.ledger), encode(value), parents=True)

    cluster.run(write)
    assert cluster.ask("metadata.read", ledger=value.ledger)["ledger"] == value.ledger
