"""Goal: a job with the certificate of a reader reads ledgers of bookies, and can do no harm.

Method: a bookie process with TLS and roles. A writer with the role gateway writes a ledger; then
`open_storage`, as the direct source uses it, and commands connect with other roles.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.pipelines.direct.options import parse
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.storage import open_storage
from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.errors import EntryUnknown
from tests.gateway.admin_commands import invoke
from tests.ledger.authority import Authority
from tests.ledger.calm_cluster import Told
from tests.node.cluster_rig import Cluster
from tests.peers.bookie import BookieProcess

pytestmark = [pytest.mark.real_loop, pytest.mark.process]


async def written(bookie, files):
    """Write a ledger of three entries whose writer goes away without closing it."""
    async with Cluster(bookie.zookeeper, files) as cluster:
        await cluster.until_serves(bookie.id)
        client = LedgerClient(cluster.store, cluster.bookies, SystemClock(), LedgerClientConfig())
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        told = Told(writer)
        for number in range(3):
            told.add(b"entry %d" % number)  # one after the other, so that LACs follow
            await told.wait(number + 1)
        return writer.ledger


def storage_of(bookie, options):
    """Return the storage that these options of the direct source name."""
    found = parse({"metadata": f"zk://{bookie.zookeeper}", "subscribe": "t", **options})
    return open_storage(found.metadata, *(found.tls or ()), transport=found.transport)


def directory(path, files):
    """Return the directory that `--tls` takes."""
    path.mkdir()
    for name, file in (("tls.crt", files.cert), ("tls.key", files.key), ("ca.crt", files.ca)):
        (path / name).write_bytes(file.read_bytes())
        (path / name).chmod(0o600)
    return str(path)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
async def test_a_reader_reads_by_kafkas_names_and_recovers_nothing(zookeeper, tmp_path, transport):
    authority = Authority(tmp_path / "authority", "our authority")
    ours, reader = authority.files("bookie"), authority.files("reader")
    tls = ["--tls-cert", str(ours.cert), "--tls-key", str(ours.key), "--tls-ca", str(ours.ca)]
    place = zookeeper.servers + zookeeper.unused_chroot()
    with BookieProcess(tmp_path / "bookie", place, tls, session="20s") as bookie:
        ledger = await written(bookie, authority.files("gateway"))
        both = tmp_path / "reader.pem"
        both.write_bytes(reader.key.read_bytes() + reader.cert.read_bytes())
        both.chmod(0o600)
        options = {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.keystore.location": str(both),
            "kafka.ssl.truststore.location": str(reader.ca),
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "bookieTransport": transport,
        }
        async with storage_of(bookie, options) as storage:
            opened = await storage.client.open(ledger)
            entries = await opened.read(0, 0, 1000)
            assert [bytes(payload) for _, payload in entries] == [b"entry 0"]
            with pytest.raises(EntryUnknown, match="denies it to the role of this certificate"):
                await storage.client.recover(ledger)
        both.chmod(0o644)
        with pytest.raises(JobError, match="chmod 600"):
            async with storage_of(bookie, options):
                pass


def test_commands_that_recover_need_the_role_of_the_auditor(zookeeper, tmp_path):
    authority = Authority(tmp_path / "authority", "our authority")
    ours = authority.files("bookie")
    tls = ["--tls-cert", str(ours.cert), "--tls-key", str(ours.key), "--tls-ca", str(ours.ca)]
    place = zookeeper.servers + zookeeper.unused_chroot()
    with BookieProcess(tmp_path / "bookie", place, tls, session="20s") as bookie:
        ledger = asyncio.run(written(bookie, authority.files("gateway")))
        reader = directory(tmp_path / "reader", authority.files("reader"))
        auditor = directory(tmp_path / "auditor", authority.files("auditor"))
        words = ("ledger", "recover", str(ledger), "-z", place, "--yes", "--tls")
        code, _, err = invoke(*words, reader)
        assert code == 1
        assert "denies it to the role of this certificate" in err
        code, _, err = invoke(*words, auditor)
        assert (code, err) == (0, "")
