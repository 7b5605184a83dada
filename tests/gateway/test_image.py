"""Goal: the image holds the product and nothing else, runs without root on a read-only root, and
its two listeners serve two networks.

Method: hadolint; the steps of the Dockerfile replayed in an empty directory without a container
engine; the command of the image on a root that is mounted read-only, without HOME. Then a gateway
with its listeners between two network namespaces, with a client in each.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from gateway.process import dev
from ledger.command_line.program import flags_of
from ledger.command_line.version import __version__
from tests.gateway.package import run
from tests.peers.image import FILE, Replay, only, seen, steps
from tests.peers.install import ROOT
from tests.peers.processes import Process, ports_in_a_row

START_S_MAX = 60.0
COMMIT = "0123456789ab"
AT_ONCE = ("--group-initial-rebalance-delay", "0")
HEALTH_COMMANDS = (["gateway", "health"],)
"""The commands for health checks, which `gateway/admin/` has."""

STRAY = (
    *(".venv/bin/python", ".venv-dev/lib/a.py", ".cache/peers/x", "data/metadata.sqlite"),
    *(".git/config", "tests/test_x.py", "docs/README.md", "gateway/core/__pycache__/a.pyc"),
    *("compose/cluster.yaml", "secret.pem", "gateway.toml"),
)


def dockerfile_words():
    return [json.loads(only(word)) for word in ("ENTRYPOINT", "CMD")]


def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--no-color", FILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_image_runs_no_process_as_root_and_keeps_state_in_a_volume():
    assert [each.text.split()[0] for each in steps() if each.word == "FROM"] == (
        ["python:3.11-slim-bookworm"] * 2
    )
    user, volume = only("USER"), json.loads(only("VOLUME"))
    assert user == "10001:10001"
    assert volume == ["/data"] == [only("WORKDIR")]
    after = [each.word for each in steps()][[each.word for each in steps()].index("USER") :]
    assert "RUN" not in after


def test_the_command_of_the_image_has_two_listeners_which_are_exposed():
    entry, words = dockerfile_words()
    assert entry == ["gateway"]
    command, *options = words
    settings = dev.settings_of(flags_of(dev.dev, options))
    assert command == "dev"
    assert dev.listener_faults(settings) == settings.faults == []
    outside, inside = dev.config_of(settings).listeners
    assert outside == ("OUTSIDE", "0.0.0.0", 9092, "localhost", 9092, "PLAINTEXT")
    assert inside == ("INSIDE", "0.0.0.0", 29092, "gateway", 29092, "PLAINTEXT")
    assert only("EXPOSE").split() == [str(each.port) for each in (outside, inside)]


def test_the_health_check_is_a_command_of_the_gateway():
    check = only("HEALTHCHECK")
    words = json.loads(check[check.index("[") :])
    assert words in HEALTH_COMMANDS


def test_a_build_sees_what_it_needs_and_nothing_else():
    listed = run("git", "ls-files", cwd=ROOT).splitlines()
    found = set(seen([*listed, *STRAY]))
    assert not found.intersection(STRAY)
    packages = [name for name in listed if name.startswith(("gateway/", "ledger/", "subscr"))]
    assert found.issuperset(packages)
    copied = {
        word
        for file in (FILE, ROOT / "compose" / "Dockerfile.spark")
        for step in steps(file)
        if step.word == "COPY" and "--from" not in step.text
        for word in step.words()[:-1]
    }
    assert copied == {
        name if "/" not in name or name.startswith("compose/") else name.partition("/")[0]
        for name in found
    }


def test_the_build_has_pins_of_the_development_environment():
    build, development = (
        (ROOT / "compose" / f"requirements-{kind}.txt").read_text().split("\n")
        for kind in ("build", "dev")
    )
    assert set(build) <= set(development)
    assert any(line.startswith("hatchling==") for line in build)


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    listed = run("git", "ls-files", cwd=ROOT).splitlines()
    replayed = Replay(tmp_path_factory.mktemp("image"), listed, {"COMMIT": COMMIT})
    replayed.run()
    return replayed


@pytest.mark.process
@pytest.mark.slow
def test_the_image_prints_its_commit(replay):
    program = replay.command()[0]
    out = subprocess.check_output([program, "--version"], env={}, text=True)
    assert out.startswith(f"gateway {__version__} (commit {COMMIT}, Python 3.")


def alone(words, writable):
    """The command on a root that is mounted read-only, except for one directory."""
    mounts = f"mount --bind {writable} {writable} && mount -o remount,bind,ro /"
    names = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *names, "sh", "-c", f'{mounts} && exec "$@"', "sh", *words]


@pytest.mark.process
@pytest.mark.slow
def test_the_command_of_the_image_serves_on_a_read_only_root_without_a_home(replay, tmp_path):
    outside, inside = ports_in_a_row(2)
    words = [
        re.sub("29092$", str(inside), re.sub("=(.*):9092$", rf"=\1:{outside}", word))
        for word in replay.command()
    ]
    words = [word.replace("gateway:", "127.0.0.1:") for word in words]
    words += ["--ledger-port", "0"]
    bare = ["env", "-i", f"PATH={os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE=1"]
    data = replay.root / "data"
    process = Process(alone([*bare, *words], data), tmp_path / "log")
    try:
        process.wait_output("KafkaServer", START_S_MAX)
        for port in (outside, inside):
            settings = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
            producer = Producer(settings)
            producer.produce("t", b"value")
            assert producer.flush(START_S_MAX) == 0
        assert process.stop(START_S_MAX) == 0
    finally:
        process.kill()
    assert (data / "metadata.sqlite").exists()
    assert "Read-only" not in process.output()


# -- two networks ----------------------------------------------------------------------------------

CLIENT = """
import sys
from confluent_kafka import Consumer, Producer
servers, topic, wait_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
settings = {"bootstrap.servers": servers, "log_level": 0}
producer = Producer(settings)
for number in range(100):
    producer.produce(topic, b"%d" % number)
assert producer.flush(wait_s) == 0
consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
found = [int(each.value()) for each in consumer.consume(100, wait_s)]
consumer.close()
print(sorted(found) == list(range(100)))
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Networks:
    """A host with one address in each of two networks, and a client in each network.

    The namespaces of the networks have no route to each other.
    """

    def __init__(self):
        self.host, self.outside, self.inside = (f"{os.getpid()}-{n}" for n in ("h", "o", "i"))
        self.addresses = {self.outside: "10.213.1.1", self.inside: "10.213.2.1"}

    def __enter__(self):
        for name in (self.host, self.outside, self.inside):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, (name, address) in enumerate(self.addresses.items()):
            here, there = f"gw{number}", "client"
            ip(
                "-n",
                self.host,
                "link",
                "add",
                here,
                "type",
                "veth",
                "peer",
                "name",
                there,
                "netns",
                name,
            )
            for space, link, last in ((self.host, here, "1"), (name, there, "2")):
                place = f"{address.rpartition('.')[0]}.{last}/24"
                ip("-n", space, "address", "add", place, "dev", link)
                ip("-n", space, "link", "set", link, "up")
        return self

    def __exit__(self, *_):
        for name in (self.host, self.outside, self.inside):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)

    def within(self, name, words):
        return ["ip", "netns", "exec", name, *words]

    def client(self, name, servers, topic, wait_s=30):
        """Return the output of a client in a network that writes and reads."""
        words = self.within(name, [sys.executable, "-c", CLIENT, servers, topic, str(wait_s)])
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def listener_words(networks, swapped=False):
    """The listeners of a gateway; `swapped` plants that each advertises the other's address."""
    places = {
        "OUTSIDE": f"{networks.addresses[networks.outside]}:9092",
        "INSIDE": f"{networks.addresses[networks.inside]}:29092",
    }
    names = list(places)[::-1] if swapped else list(places)
    advertised = zip(places, names, strict=True)
    return [
        *(word for name, at in places.items() for word in ("--listener", f"{name}={at}")),
        *(word for name, of in advertised for word in ("--advertise", f"{name}={places[of]}")),
    ]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
def test_a_client_in_each_network_works_only_by_the_address_of_its_listener(tmp_path, swapped):
    assert os.geteuid() == 0 and shutil.which("ip"), "needs root and iproute2 for namespaces"
    with Networks() as networks:
        words = listener_words(networks, swapped)
        argv = [sys.executable, "-m", "gateway", "dev", *words, "--no-ledger-port", *AT_ONCE]
        argv.append("--allow-insecure")
        argv += ["--data", str(tmp_path / "data")]
        gateway = Process(networks.within(networks.host, argv), tmp_path / "log")
        try:
            gateway.wait_output("KafkaServer", START_S_MAX)
            if swapped:
                refused = networks.client(networks.outside, "10.213.1.1:9092", "a", wait_s=4)
                assert "AssertionError" in refused
                return
            assert networks.client(networks.outside, "10.213.1.1:9092", "outside") == "True"
            assert networks.client(networks.inside, "10.213.2.1:29092", "inside") == "True"
        finally:
            gateway.stop(START_S_MAX)
