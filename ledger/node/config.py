"""Settings of a bookie process: name, unit, default, bound, reason. `options` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ledger.adapters.links.link_config import ANSWERS_BYTES_MAX
from ledger.bookie.config import ENTRY_BYTES_MAX, JournalSync
from ledger.command_line.zookeeper_settings import SetAcl, ZooKeeperSecurity
from ledger.ports.bookies import DEFAULT_RACK
from ledger.ports.disk import IoMode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The settings of one `bookie serve`, as flags and as keys of the file given by `--config`."""

    zookeeper: str = "127.0.0.1:2181"  # host:port of the servers, by commas; /chroot at the end
    zookeeper_auth: str = ""  # names the secret NAME:PASSWORD of this bookie; "": no identity
    zookeeper_read_auth: str = ""  # names that of the identity that may read what it creates
    zookeeper_set_acl: SetAcl | None = None  # None: required, if there is an identity
    zookeeper_sasl_mechanism: str | None = None  # DIGEST-MD5; None: the digest scheme
    zookeeper_ssl_client_enable: bool = False  # True connects to ZooKeeper by TLS
    zookeeper_ssl_truststore_location: Path | None = None  # PEM certificates of ZooKeeper's CA
    zookeeper_ssl_keystore_location: Path | None = None  # PEM key and certificates for ZooKeeper
    zookeeper_ssl_keystore_password: str = ""  # names the passphrase of that key
    data: Path = Path("bookie")  # directory only for the bookie's files; created if missing
    host: str = "127.0.0.1"  # address to listen on
    port: int = 3181  # TCP port to listen on, by default BookKeeper's; 0: any free port
    grpc_port: int = 0  # gRPC port to listen on; 0: any free port, which clients find registered
    advertised_host: str = ""  # address that clients connect to; "": the address it listens on
    rack: str = DEFAULT_RACK  # a path; copies of an entry go to different racks if possible
    name: str = "bookie"  # first part of the bookie id; the second part is the directory's
    journal_sync: JournalSync = "group"  # "never" acknowledges adds before they are on disk
    io: IoMode = "auto"  # "uring": the journal is written by io_uring; "auto": where it works
    disk_free_min: int = 256 * 1024 * 1024  # free bytes below which only recovery adds are accepted
    disk_used_max: int = 95  # percent of the disk; the bookie is read-only above it
    disk_used_resume: int = 90  # percent of the disk; the bookie is writable again below it
    gc_interval: float = 600.0  # seconds between two garbage collections
    rewrite_share: int = 20  # percent; log files with a smaller live share are compacted; 0: none
    entry_max: int = ENTRY_BYTES_MAX  # most bytes of one entry with header and digest
    queue_max: int = (
        64 * 1024 * 1024
    )  # bytes waiting for the disk; further adds are refused as OVERLOADED
    answers_max: int = ANSWERS_BYTES_MAX  # unsent answers of all clients; then reads are OVERLOADED
    write_cache: int = 32 * 1024 * 1024  # newest durable entries, kept for readers; 0: none
    read_ahead: int = 4 * 1024 * 1024  # read from disk ahead of a ledger's reader; 0: nothing
    tls_cert: Path | None = None  # PEM certificate; with it, peers need one signed by tls_ca
    tls_key: Path | None = None  # PEM key; readable by its owner only
    tls_ca: Path | None = None  # PEM certificates of the CA
    tls_roles: str = "required"  # "off" accepts certificates without a role, as before roles
    allow_insecure: bool = False  # True allows listening beyond this machine without TLS
    session: float = 10.0  # seconds after which ZooKeeper expires an unresponsive bookie
    zookeeper_wait: float = 60.0  # seconds to wait for ZooKeeper at the start, before exit code 69
    audit: bool = False  # True also runs an auditor and a replication worker, as `bookie audit`
    bookie_transport: str = "tcp"  # or "grpc": how the replication worker reaches bookies
    audit_delay: float = 10.0  # seconds a bookie may be absent before its ledgers are copied
    http_host: str = "127.0.0.1"  # address of the HTTP port
    http_port: int | None = None  # HTTP port of /metrics and /health; 0: any free port, None: none
    drain: float = 0.5  # seconds for calls in flight at shutdown; streams use all of them

    def __post_init__(self) -> None:
        assert 0 <= self.port <= 65_535
        assert 0 <= self.grpc_port <= 65_535
        assert self.port != self.grpc_port or self.port == 0
        assert self.bookie_transport in ("tcp", "grpc")
        assert self.tls_roles in ("required", "off")
        assert 0 < self.disk_used_resume < self.disk_used_max <= 100
        assert 0 <= self.rewrite_share < 100
        assert self.disk_free_min >= 0
        assert 0 < self.entry_max <= ENTRY_BYTES_MAX
        assert self.entry_max < self.queue_max
        assert self.entry_max < self.answers_max
        assert min(self.gc_interval, self.session, self.zookeeper_wait) > 0
        assert self.drain >= 0
        assert min(self.write_cache, self.read_ahead) >= 0
        assert self.audit_delay >= 0
        tls = (self.tls_cert, self.tls_key, self.tls_ca)
        assert all(tls) or not any(tls)

    @property
    def zookeeper_security(self) -> ZooKeeperSecurity:
        """The identity of this bookie at ZooKeeper, and its TLS."""
        tls = self.zookeeper_ssl_client_enable
        return ZooKeeperSecurity(
            auth=self.zookeeper_auth,
            read_auth=self.zookeeper_read_auth,
            set_acl=self.zookeeper_set_acl or SetAcl.REQUIRED,
            sasl=self.zookeeper_sasl_mechanism == "DIGEST-MD5",
            truststore=self.zookeeper_ssl_truststore_location if tls else None,
            keystore=self.zookeeper_ssl_keystore_location if tls else None,
            keystore_password=self.zookeeper_ssl_keystore_password if tls else "",
        )
