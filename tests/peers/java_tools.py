"""Apache Kafka's own command-line tools, unchanged, from the Maven jars."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.peers import install
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
DELETE_RECORDS = f"{TOOLS}.DeleteRecordsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = f"{TOOLS}.GetOffsetShell"
CONSOLE_PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
VERIFIABLE_PRODUCER = f"{TOOLS}.VerifiableProducer"
VERIFIABLE_CONSUMER = f"{TOOLS}.VerifiableConsumer"
PRODUCER_PERFORMANCE = f"{TOOLS}.ProducerPerformance"
CONSUMER_PERFORMANCE = f"{TOOLS}.ConsumerPerformance"

# Short runs on a shared machine: little compiling, one collector thread.
JVM_SHORT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
# Makes the client log lost connections.
LOST_CONNECTIONS = ("-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=info",)
# What Kafka's start scripts give to the perf tools.
JVM_PERF = ("-Xmx512m", "-XX:+UseG1GC")


class ToolFailed(AssertionError):
    """A tool ended with a code other than zero."""


def _archive(main: str) -> Path:
    """Where the classes of a tool are kept ready for the JVM: halves the CPU of a short run."""
    return install.CACHE / "peers" / "classes" / f"{install.KAFKA_VERSION}-{main}.jsa"


def argv(main: str, *words: str, jvm: tuple[str, ...] = JVM_SHORT) -> list[str]:
    return [install.java(), *jvm, *JVM_QUIET, "-cp", install.kafka_classpath(), main, *words]


def run(main: str, *words: str, stdin: str = "", timeout_s: float = 90.0) -> str:
    """Run a tool to its end; returns what it wrote to stdout."""
    archive = _archive(main)
    made = archive.with_suffix(f".{os.getpid()}")
    if archive.exists():
        classes = f"-XX:SharedArchiveFile={archive}"
    else:
        archive.parent.mkdir(parents=True, exist_ok=True)
        classes = f"-XX:ArchiveClassesAtExit={made}"
    done = subprocess.run(
        argv(main, *words, jvm=(*JVM_SHORT, "-Xlog:disable", classes)),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if made.exists():
        made.rename(archive)
    if done.returncode != 0:
        name = main.rsplit(".", 1)[-1]
        raise ToolFailed(f"{name} ended with {done.returncode}\n{done.stdout}{done.stderr}"[-4000:])
    return done.stdout


def start(log: Path, main: str, *words: str, jvm: tuple[str, ...] = ()) -> Process:
    """Start a tool that runs until it is stopped, with further options `jvm`."""
    return Process(argv(main, *words, jvm=(*JVM_SHORT, *jvm)), log)
