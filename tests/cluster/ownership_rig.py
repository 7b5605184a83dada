"""Three gateways over three bookies and ZooKeeper, all processes here, and what harms them.

Each gateway reaches ZooKeeper through a proxy of its own, so that one session can be ended while
the others live. Ticks are 100 ms. A gateway that stands still for a third of its session ends its
connections, so tests whose subject is no expiry keep `SESSION_MS`. `sessions_ms` is what was
negotiated.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Self

from tests.cluster.world import World
from tests.histories.background import Background
from tests.histories.history import Key, place_of
from tests.histories.wire import Peers, Topology, read_topology
from tests.peers.gateway import ClusterGateway, Gateways
from tests.peers.processes import Lifecycle, process_tree, wait_until
from tests.peers.proxy import Proxy

SESSION_MS = 6_000
OPTIONS = ("--group-initial-rebalance-delay-ms", "0")
LED_S_MAX = 120.0
ASK_S_MAX = 2.0
EXPIRE_S_MAX = 30.0
KILLED_S_MAX = 60.0


def cpu_ticks() -> tuple[int, int]:
    """(idle, all) ticks of this machine's processors since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


class OwnershipRig(Lifecycle):
    """The cluster. What it does blocks; clients live in `background`."""

    def __init__(
        self,
        directory: Path,
        background: Background,
        *,
        gateways: int = 3,
        bookies: int = 3,
        proxied: bool = False,
        options: Sequence[str] = OPTIONS,
        session_ms: int = SESSION_MS,
        ensemble: bool = False,
    ) -> None:
        self.world = World(directory, bookies, proxied=proxied, ensemble=ensemble)
        servers = self.world.zookeeper.servers
        self.gateways = Gateways(directory, servers, gateways, options, session_ms=session_ms)
        members = self.world.ensemble.members if self.world.ensemble else [self.world.zookeeper]
        # One for each gateway and server: the way of gateway n to server m is `_ways[n][m]`.
        self._ways = [[Proxy(member.port) for member in members] for _ in self.gateways]
        self._background = background

    def start(self) -> Self:
        try:
            self.world.start()
            for gateway, ways in zip(self.gateways, self._ways, strict=True):
                gateway.zookeeper = ",".join(proxy.start().address for proxy in ways)
            self.gateways.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Nothing of it runs any more."""
        self.gateways.kill()
        for proxy in chain.from_iterable(self._ways):
            if proxy.running:
                proxy.stop()
        self.world.stop()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", gateway.port) for gateway in self.gateways]

    # -- who has what ----------------------------------------------------------------------------

    def topology(self, topic: str, but: ClusterGateway | None = None) -> Topology | None:
        """As the first running gateway says that answers, but not this one."""

        async def ask(port: int) -> Topology:
            peers = Peers()
            try:
                peer = await peers.at("127.0.0.1", port)
                return await read_topology(peer, topic, ASK_S_MAX)
            finally:
                await peers.close()

        for gateway in self.gateways:
            if gateway.running and gateway is not but:
                try:
                    return self._background.run(ask(gateway.port))
                except (OSError, TimeoutError):
                    continue
        return None

    def leaders(self, keys: Sequence[Key]) -> dict[Key, int]:
        """The node that leads each of these keys of one topic; -1: nobody."""
        found = self.topology(place_of(keys[0])[0])
        known = found.partitions if found is not None else {}
        return {key: known.get(key, (-1,))[0] for key in keys}

    def led_by(self, node: int, keys: Sequence[Key]) -> list[Key]:
        return [key for key, leader in self.leaders(keys).items() if leader == node]

    def wait_led(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Every key has a leader that runs."""

        def led() -> dict[Key, int]:
            found = self.leaders(keys)
            running = {gateway.node_id for gateway in self.gateways if gateway.running}
            return found if set(found.values()) <= running else {}

        return wait_until(led, "every partition to have a leader", LED_S_MAX, pause_s=0.1)

    def sessions_ms(self) -> list[int]:
        """What ZooKeeper agreed to, for each gateway's session."""
        ensemble = self.world.ensemble
        servers = ensemble.members if ensemble else [self.world.zookeeper]
        told = "".join(server.ask("cons") for server in servers)
        wanted = re.findall(r"\bto=(\d+)", told)
        return sorted(int(each) for each in wanted)

    # -- harm ------------------------------------------------------------------------------------

    def kill(self, gateway: ClusterGateway, *, machine: bool = False) -> float:
        """Kill -9; when, on the clock of the history.

        With `machine`, all that it started dies as well, as if its machine had lost its power.
        """
        doomed = process_tree(gateway.process.pid) if machine else [gateway.process.pid]
        at_s = time.monotonic()
        for pid in reversed(doomed):  # no child sees the end of its parent
            os.kill(pid, signal.SIGKILL)
        gateway.process.wait_exit(KILLED_S_MAX)
        gateway.kill()
        return at_s

    def expire(self, gateway: ClusterGateway, topic: str) -> None:
        """Its ZooKeeper session ends while it runs; then it reaches ZooKeeper again."""
        for proxy in self.ways(gateway):
            proxy.drop()
        try:
            wait_until(
                lambda: gateway.node_id not in self._members(topic, gateway),
                "others to miss it",
                EXPIRE_S_MAX,
                pause_s=0.05,
            )
        finally:
            for proxy in self.ways(gateway):
                proxy.heal()
                proxy.cut()

    def ways(self, gateway: ClusterGateway) -> list[Proxy]:
        """What this gateway reaches ZooKeeper through: a proxy for each server."""
        return self._ways[gateway.node_id]

    def _members(self, topic: str, but: ClusterGateway) -> set[int]:
        """Who lives, as another one than this says."""
        found = self.topology(topic, but)
        return set(found.nodes) if found is not None else {but.node_id}
