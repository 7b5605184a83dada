"""Goal: `gateway serve --workers N` is N brokers of a cluster, which one signal ends gracefully.

Method: the command as users run it, over ZooKeeper and bookies of its own; an idempotent producer
goes on while a worker is killed, and knows every acknowledgement.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.cluster.world import World
from tests.crash.load import Load, judge, read_all
from tests.histories.workload import make_topic
from tests.peers.gateway import ClusterGateway, ports_in_a_row
from tests.peers.processes import command_line, process_tree, wait_until

WORKERS = 3
PARTITIONS = 6
MORE = 1_000


def test_workers_are_brokers_that_come_back_when_killed_and_leave_on_one_signal(tmp_path):
    ports = ports_in_a_row(WORKERS)
    everyone = set(enumerate(ports, 7))
    with World(tmp_path, 3, proxied=False) as world, started(tmp_path, world, ports) as gateway:
        all_run = f"gateways started: bootstrap.servers={addresses(ports)} workers={WORKERS}"
        wait_until(lambda: all_run in gateway.output(), all_run, 60.0)
        settings_file(tmp_path).write_text("a worker that starts again does not read this")
        admin = AdminClient({"bootstrap.servers": addresses(ports), "log_level": 0})
        wait_until(lambda: brokers(admin) == everyone, "three brokers", 60.0)
        make_topic(addresses(ports), "flights", PARTITIONS, 3)
        load = Load(addresses(ports), "flights", "one", pause_s=0.015)
        try:
            more(load, "a producer to produce")
            runs = starts(gateway)
            os.kill(workers(gateway)[1], signal.SIGKILL)
            more(load, "a producer to go on")
            missed = re.compile(r'event="a worker ended" worker=\d reason="exit code 137"')
            wait_until(lambda: missed.search(gateway.output()), "a worker to be missed", 60.0)
            # The dead one is in the list until its session ends, so that alone proves nothing.
            wait_until(lambda: starts(gateway) > runs, "another in its place", 60.0)
            wait_until(lambda: brokers(admin) == everyone, "it to be back", 60.0)
            more(load, "a producer to go on")
        finally:
            told = load.end()
        assert judge(read_all(addresses(ports), "flights", PARTITIONS), [told]) >= 3 * MORE
        ended = workers(gateway)
        assert len(ended) == WORKERS
        assert gateway.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in ended)


def settings_file(directory):
    return directory / "gateway.toml"


def started(directory, world, ports):
    """The process that watches them; `with` it they serve."""
    settings_file(directory).write_text(f"workers = {len(ports)}\n")
    return ClusterGateway(
        directory / "gateway",
        world.zookeeper.servers,
        ["--config", str(settings_file(directory))],
        node_id=7,
        session_ms=6_000,
        port=ports[0],
    )


def workers(gateway):
    """Their process ids."""
    tree = process_tree(gateway.process.pid)
    return [pid for pid in tree if b"--supervisor" in command_line(pid)]


def starts(gateway):
    """How many workers have started, ever."""
    return gateway.output().count("gateway started: ")


def addresses(ports):
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def brokers(admin):
    """Node id and port of each."""
    return {(one.id, one.port) for one in admin.list_topics(timeout=60).brokers.values()}


def more(load, what):
    """So many more acknowledgements."""
    wanted = len(load.told.offsets) + MORE
    wait_until(lambda: len(load.told.offsets) >= wanted, what, 60.0)
