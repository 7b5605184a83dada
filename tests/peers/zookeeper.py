"""Apache ZooKeeper: one standalone server, or an ensemble of three, on loopback ports.

Its ticks are short (100 ms unless told otherwise), so sessions may be as short as 200 ms; it does
not sync its log to disk unless asked: what it acknowledged outlives `kill -9` of the process, not
of the machine.
A test session shares one server (the fixture `zookeeper`); each test uses a chroot of its own.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from tests.peers import install
from tests.peers.processes import Lifecycle, ServerProcess, free_port, wait_until
from tests.peers.proxy import Proxy

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
MEMBER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
PROPERTIES = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "zookeeper.admin.enableServer": "false",
    "zookeeper.preAllocSize": "1024",  # KiB; the default of 64 MiB is for real disks
    "zookeeper.skipACL": "yes",
    "java.awt.headless": "true",
}
# Elections among servers on one machine: a lost message is sent again after a second, not a minute.
ELECTION = {
    "zookeeper.cnxTimeout": "1000",
    "zookeeper.fastleader.maxNotificationInterval": "1000",
}
SESSION_MS_MAX = 60_000
MEMBER_HEAP_MB = 48
HOWS = ("killed", "paused", "cut off")


class ServerTls(NamedTuple):
    """PEM files of a server with a second port, of TLS, and what it asks of clients."""

    keystore: Path  # private key and certificates
    truststore: Path
    client_auth: str = "need"  # ZooKeeper's default; or `want`, `none`


class ZooKeeper(ServerProcess):
    """One server; its port and data outlive stop, kill and restart.

    Sessions are as short as `session_ms_min`, two ticks if it is not given; they end at a tick.
    """

    name = "ZooKeeper"
    start_s_max = 60.0
    main = MAIN
    properties = PROPERTIES
    modes = ("standalone",)

    def __init__(
        self,
        data: Path,
        *,
        tick_ms: int = 100,
        session_ms_min: int | None = None,
        heap_mb: int = 256,
        synced: bool = False,
        applies_acls: bool = False,
        tls: ServerTls | None = None,
        sasl_users: Mapping[str, str] | None = None,
    ) -> None:
        """`sasl_users` are the passwords of those that may authenticate by DIGEST-MD5."""
        super().__init__(data)
        self.sasl_users = sasl_users
        self.log = data / "zookeeper.log"
        self.applies_acls = applies_acls
        self.tls = tls
        self.secure_port = free_port() if tls is not None else 0
        self.tick_ms = tick_ms
        self.session_ms_min = 2 * tick_ms if session_ms_min is None else session_ms_min
        self.heap_mb = heap_mb
        self.synced = synced
        self._chroots = itertools.count(1)

    @property
    def servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_servers(self) -> str:
        """What clients of TLS connect to."""
        return f"127.0.0.1:{self.secure_port}"

    def unused_chroot(self) -> str:
        """A root that nobody has used; it does not exist yet."""
        return f"/test-{os.getpid()}-{next(self._chroots)}"

    def prepare(self) -> None:
        """Write its configuration."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._config.write_text(
            f"tickTime={self.tick_ms}\n"
            f"dataDir={self._tree}\n"
            f"clientPortAddress=127.0.0.1\nclientPort={self.port}\n"
            f"minSessionTimeout={self.session_ms_min}\n"
            f"maxSessionTimeout={SESSION_MS_MAX}\n"
            "maxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr,ruok,cons,conf,wchs,wchp,mntr\n" + self.more_settings()
        )

    def more_settings(self) -> str:
        """Return further lines of the configuration."""
        if self.tls is None:
            return ""
        return (
            f"secureClientPort={self.secure_port}\nsecureClientPortAddress=127.0.0.1\n"
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={self.tls.keystore}\nssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={self.tls.truststore}\nssl.trustStore.type=PEM\n"
            f"ssl.clientAuth={self.tls.client_auth}\n"
            "ssl.hostnameVerification=false\n"  # of clients, whose names are those of programs
        )

    def argv(self) -> list[str]:
        properties = {
            **self.properties,
            "zookeeper.forceSync": "yes" if self.synced else "no",
            "zookeeper.skipACL": "no" if self.applies_acls else "yes",
        }
        if self.sasl_users is not None:
            properties["java.security.auth.login.config"] = str(self._write_users(self.sasl_users))
            provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            properties["zookeeper.authProvider.1"] = provider
        words = [f"-D{key}={value}" for key, value in properties.items()]
        classpath = ("-cp", f"{install.zookeeper_jars()}/*")
        main = (self.main, str(self._config))
        return [install.java(), f"-Xmx{self.heap_mb}m", *JVM, *words, *classpath, *main]

    def _write_users(self, users: Mapping[str, str]) -> Path:
        """Return a JAAS file with the users."""
        lines = [f'    user_{name}="{password}"' for name, password in users.items()]
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        file = self.data / "jaas.conf"
        file.write_text("\n".join([f"Server {{\n  {module}", *lines]) + ";\n};\n")
        return file

    @property
    def _config(self) -> Path:
        return self.data / "zoo.cfg"

    @property
    def _tree(self) -> Path:
        return self.data / "tree"

    def serves(self) -> bool:
        """Return True once it serves. If another server took the port, that one answers."""
        ours = f"dataDir={self._tree.absolute()}/"
        return self.mode() in self.modes and ours in self.ask("conf", timeout_s=0.5)

    def mode(self) -> str:
        """Return `standalone`, `leader` or `follower`; empty while it does not serve."""
        found = re.search(r"^Mode: (\w+)", self.ask("srvr", timeout_s=0.5), re.MULTILINE)
        return found[1] if found else ""

    def ask(self, word: str, timeout_s: float = 5.0) -> str:
        """The answer to a four-letter word (`srvr`, `cons`, `wchs`); empty when there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def kill(self) -> None:
        """Kill -9. Sessions outlive it: a restarted server expires those whose client is gone."""
        super().kill()


class Member(ZooKeeper):
    """One server of an ensemble. `peers` has the address lines of all, as this one sees them."""

    main = MEMBER_MAIN
    properties = PROPERTIES | ELECTION
    modes = ("leader", "follower")

    def __init__(
        self, data: Path, number: int, sync_limit: int, *, tick_ms: int, synced: bool
    ) -> None:
        super().__init__(data, tick_ms=tick_ms, heap_mb=MEMBER_HEAP_MB, synced=synced)
        self.number = number
        self.sync_limit = sync_limit
        self.quorum_port = free_port()
        self.election_port = free_port()
        self.peers: list[str] = []

    def prepare(self) -> None:
        super().prepare()
        self._tree.mkdir(exist_ok=True)
        (self._tree / "myid").write_text(f"{self.number}\n")

    def more_settings(self) -> str:
        # A proxy accepts before its server listens; then both sides must give up soon.
        lines = ["initLimit=20", f"syncLimit={self.sync_limit}", *self.peers]
        return "".join(f"{line}\n" for line in lines)


class Ensemble(Lifecycle):
    """Three servers with a proxy on each way between two of them, so that one can be cut off."""

    def __init__(
        self, data: Path, *, tick_ms: int = 100, sync_limit: int = 5, synced: bool = False
    ) -> None:
        self.members = [
            Member(data / str(number), number, sync_limit, tick_ms=tick_ms, synced=synced)
            for number in (1, 2, 3)
        ]
        self._proxies: dict[tuple[int, int], list[Proxy]] = {}
        self._running = ExitStack()

    @property
    def servers(self) -> str:
        """Return what clients connect to."""
        return ",".join(member.servers for member in self.members)

    def start(self) -> Self:
        with ExitStack() as stack:
            for one in self.members:
                one.peers = [self._address(stack, one, other) for other in self.members]
            for one in self.members:
                stack.callback(one.kill)
                one.begin()
            self._running = stack.pop_all()
        try:
            self.wait_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def _address(self, stack: ExitStack, one: Member, other: Member) -> str:
        ports = (other.quorum_port, other.election_port)
        if one is not other:
            proxies = [stack.enter_context(Proxy(port)) for port in ports]
            self._proxies[one.number, other.number] = proxies
            ports = (proxies[0].port, proxies[1].port)
        return f"server.{other.number}=127.0.0.1:{ports[0]}:{ports[1]}"

    def stop(self) -> None:
        self._running.close()

    def wait_whole(self) -> None:
        """Wait until all three serve: a leader, with which two followers are in sync."""

        def whole() -> bool:
            leaders = [member for member in self.members if member.mode() == "leader"]
            # A server that was paused takes itself for a follower until it finds out.
            return (
                len(leaders) == 1
                and re.search(r"zk_synced_followers\t2\b", leaders[0].ask("mntr", timeout_s=0.5))
                is not None
            )

        wait_until(whole, "the ensemble to be whole", 60, pause_s=0.05)

    def member(self, mode: str) -> Member:
        """Return a server that is in this mode now. A busy one may answer late: ask again."""

        def found() -> Member | None:
            return next((member for member in self.members if member.mode() == mode), None)

        # Not `next` alone: a future takes no StopIteration, so a thread's caller would wait for it.
        member = wait_until(found, f"a server that is a {mode}", 60)
        assert member is not None
        return member

    def harm(self, member: Member, how: str) -> None:
        """Do one of `HOWS` to this server."""
        if how == "cut off":
            self.cut_off(member)
        elif how == "paused":
            member.pause()
        else:
            member.kill()

    def undo(self, member: Member, how: str) -> None:
        """Let the server come back, and wait until the ensemble is whole."""
        if how == "cut off":
            self.heal(member)
        elif how == "paused":
            member.resume()
        else:
            member.begin()
        self.wait_whole()

    def cut_off(self, member: Member) -> None:
        """Hold all bytes between this server and the others. Its clients still reach it."""
        for proxy in self._around(member):
            proxy.freeze()

    def heal(self, member: Member) -> None:
        """Let this server and the others connect anew."""
        for proxy in self._around(member):
            proxy.cut()
            proxy.heal()

    def _around(self, member: Member) -> list[Proxy]:
        ways = [way for way in self._proxies if member.number in way]
        return [proxy for way in ways for proxy in self._proxies[way]]
