"""The processes of a cluster on this machine, and the commands that start them. Pure.

They are the services of compose/cluster.yaml; only what a container would give is replaced, and a
bookie's disk is one that it shares with everything else here. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ZOOKEEPER: Final = "zookeeper"
AUDIT: Final = "audit"
LOOPBACK: Final = "127.0.0.1"
GATEWAYS, BOOKIES = 3, 4
"""How many there are unless the user says otherwise."""
SESSION: Final = "3s"
SHARED_DISK: Final = ("--disk-used-max", "100%", "--disk-used-resume", "99%")


class Size(NamedTuple):
    """How many processes a cluster has, besides ZooKeeper and one auditor."""

    gateways: int = GATEWAYS
    bookies: int = BOOKIES

    @property
    def gateway_names(self) -> list[str]:
        return [f"gateway-{number}" for number in range(1, self.gateways + 1)]

    @property
    def bookie_names(self) -> list[str]:
        return [f"bookie-{number}" for number in range(1, self.bookies + 1)]

    @property
    def stages(self) -> list[list[str]]:
        """The processes in the order in which they start; those of a stage start together.

        The first bookie lays the cluster out; before it an auditor and a gateway would end.
        """
        return [[ZOOKEEPER], self.bookie_names, [AUDIT, *self.gateway_names]]

    @property
    def names(self) -> list[str]:
        return [name for stage in self.stages for name in stage]


class Web(NamedTuple):
    """The web pages of the gateways: the port of the first, the others follow; with changes."""

    port: int
    write: bool = False


def words_of(
    name: str, ports: Mapping[str, int], directory: Path, web: Web | None = None
) -> Sequence[str]:
    """Return the module and the arguments of a process, all but ZooKeeper."""
    zookeeper = ("--zookeeper", f"{LOOPBACK}:{ports[ZOOKEEPER]}")
    if name == AUDIT:
        return ("ledger", "audit", *zookeeper)
    kind, _, number = name.rpartition("-")
    place = ("--port", str(ports[name]))
    if kind == "bookie":
        here = ("--host", LOOPBACK, "--advertised-host", LOOPBACK)
        data = ("--data", str(directory / name), "--name", name, "--rack", f"/r{number}")
        local = ("--allow-insecure", *SHARED_DISK)
        return ("ledger", "serve", *zookeeper, *data, *here, *place, *local)
    here = ("--host", LOOPBACK, "--advertised-host", LOOPBACK, "--peer-host", LOOPBACK)
    identity = ("--node-id", number, "--rack", f"r{number}", "--session", SESSION)
    page: Sequence[str] = ()
    if web is not None:
        page = ("--http-port", str(web.port + int(number) - 1))
        page = (*page, "--http-write") if web.write else page
    return ("gateway", "serve", *zookeeper, *here, *place, *identity, *page)


def bootstrap_of(size: Size, ports: Mapping[str, int]) -> str:
    """Return the addresses of the gateways, for clients."""
    return ",".join(f"{LOOPBACK}:{ports[name]}" for name in size.gateway_names)
