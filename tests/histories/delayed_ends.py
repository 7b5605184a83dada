"""The end of a transaction that the network delays into the next one, by stock clients.

    python -m tests.histories.delayed_ends [--rounds 3]

A client ends a transaction. A proxy holds the request; the client gives it up, and ends the
transaction over another connection. It writes a record of its next transaction, and now what was
held arrives. Then it writes another record and ends that transaction the other way. Jepsen found
this in Bufstream, and in Apache Kafka with clients of protocol 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException, Message

from tests.histories import with_confluent_transactions as by_librdkafka
from tests.histories.checker import bad
from tests.histories.history import Key, key_of, place_of
from tests.histories.recorder import Recorder
from tests.histories.transacting import Note
from tests.histories.transactions import check_transactions
from tests.histories.with_aiokafka import BACKOFF_MS
from tests.histories.workload import make_topic
from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import FOR_TESTS, JVM_QUIET, ApacheKafka
from tests.peers.proxy import TO_SERVER, Proxy

OPTIONS = ("--group-initial-rebalance-delay-ms", "0")
END_TXN = 26
PATIENCE_MS = 1_000  # how long a client waits for an answer
ANSWER_S = 60.0
STEPS = install.ROOT / "tests" / "peers" / "TransactionSteps.java"
OLDER = "3.9.1"


class Failed(Exception):
    """A client was refused."""


class Client(Protocol):
    """A producer. Each call raises Failed if it is refused."""

    def begin(self) -> None: ...
    def send(self, key: Key, value: int) -> int: ...
    def end(self, *, commit: bool) -> None: ...
    def close(self) -> None: ...


class Aiokafka:
    """Protocol 1."""

    def __init__(self, bootstrap: str, _: str, name: str) -> None:
        self._runner = asyncio.Runner()

        async def started() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=name,
                retry_backoff_ms=BACKOFF_MS,
                request_timeout_ms=PATIENCE_MS,
            )
            await producer.start()
            return producer

        self._producer = self._runner.run(started())

    def _run(self, call: Callable[..., Any], *words: Any) -> Any:
        async def run() -> Any:
            async with asyncio.timeout(ANSWER_S):
                return await call(*words)

        try:
            return self._runner.run(run())
        except (KafkaError, TimeoutError) as error:
            raise Failed(repr(error)) from None

    def begin(self) -> None:
        self._run(self._producer.begin_transaction)

    def send(self, key: Key, value: int) -> int:
        topic, partition = place_of(key)
        sent = self._run(self._producer.send_and_wait, topic, b"%d" % value, None, partition)
        return int(sent.offset)

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        self._run(producer.commit_transaction if commit else producer.abort_transaction)

    def close(self) -> None:
        self._run(self._producer.stop)
        self._runner.close()


class Librdkafka:
    """Protocol 1."""

    def __init__(self, bootstrap: str, _: str, name: str) -> None:
        patience = {"socket.timeout.ms": PATIENCE_MS}
        made = by_librdkafka.new_producer(bootstrap, name, threading.Event(), **patience)
        assert made is not None
        self._producer = made

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, key: Key, value: int) -> int:
        topic, partition = place_of(key)
        told: list[int] = []

        def on_delivery(error: object, message: Message) -> None:
            told.extend([] if error is not None else [message.offset() or 0])

        self._producer.produce(topic, b"%d" % value, partition=partition, on_delivery=on_delivery)
        self._producer.flush(ANSWER_S)
        if not told:
            raise Failed("the record is not acknowledged")
        return told[0]

    def end(self, *, commit: bool) -> None:
        producer = self._producer
        try:
            (producer.commit_transaction if commit else producer.abort_transaction)(ANSWER_S)
        except KafkaException as error:
            raise Failed(repr(error)) from None

    def close(self) -> None:
        """Nothing."""


class Java:
    """The stock Java client of 4.3, protocol 2, or of 3.9, protocol 1."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        version = name.rpartition("-")[2]
        words = [STEPS.stem, bootstrap, topic, name, str(PATIENCE_MS)]
        argv = [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", _classpath(version), *words]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._answer()

    def _ask(self, command: str) -> str:
        assert self._child.stdin is not None
        self._child.stdin.write(command + "\n")
        return self._answer()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        answer = self._child.stdout.readline().strip()
        if not answer.startswith("ok"):
            raise Failed(answer)
        return answer

    def begin(self) -> None:
        self._ask("begin")

    def send(self, key: Key, value: int) -> int:
        return int(self._ask(f"send {place_of(key)[1]} {value}").split()[1])

    def end(self, *, commit: bool) -> None:
        self._ask("commit" if commit else "abort")

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


def _classpath(version: str) -> str:
    newest = install.compiled(STEPS, sorted(install.kafka_jars().glob("*.jar")))
    if version == "4.3":
        return newest
    clients = (("org.apache.kafka", "kafka-clients", OLDER), install.LOG_COORDINATE)
    return f"{newest.split(':')[0]}:{install.maven_jars(f'kafka-clients-{OLDER}', clients)}/*"


NewClient = Callable[[str, str, str], Client]
PROTOCOL_2: dict[str, NewClient] = {"java-4.3": Java}
PROTOCOL_1: dict[str, NewClient] = {
    "java-3.9": Java,
    "aiokafka": Aiokafka,
    "librdkafka": Librdkafka,
}


def kafka(directory: Path, proxy_port: int) -> ApacheKafka:
    """Return Apache Kafka, whose clients come through a proxy."""
    address = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy_port}"}
    return ApacheKafka(directory / "kafka", FOR_TESTS | address)


def gateway(directory: Path, proxy_port: int) -> Gateway:
    """Return an embedded gateway, whose clients come through a proxy."""
    address = ("--advertised-host", "127.0.0.1", "--advertised-port", str(proxy_port))
    return Gateway(directory / "gateway", (*OPTIONS, *address))


def play(
    new_broker: Callable[[Path, int], Broker],
    directory: Path,
    clients: dict[str, NewClient],
    rounds: int,
) -> dict[str, Counter[str]]:
    """Return the anomalies of each client, after `rounds` delayed commits and aborts of it."""
    with Proxy(0) as proxy, new_broker(directory, proxy.port) as broker:
        proxy.server_port = broker.port
        return {name: _judged(proxy, name, clients[name], rounds) for name in clients}


def _judged(proxy: Proxy, name: str, new_client: NewClient, rounds: int) -> Counter[str]:
    recorder = Recorder()
    keys = make_topic(proxy.address, name, 2, 1)
    client = new_client(proxy.address, name, f"id-{name}")
    for commit in (True, False) * rounds:
        try:
            _delayed(proxy, client, recorder, name, commit)
        except Failed:
            client.close()
            client = new_client(proxy.address, name, f"id-{name}")
    client.close()
    by_librdkafka.read_all(recorder, proxy.address, keys)
    found = Counter(each.anomaly for each in bad(check_transactions(recorder.ops)))
    for error, count in recorder.errors.items():
        found[error] = count
    return found


def _delayed(proxy: Proxy, client: Client, recorder: Recorder, name: str, commit: bool) -> None:
    """Let the end of one transaction arrive during the next one. Raises Failed."""
    keys = [key_of(name, partition) for partition in (0, 1)]
    first = Note(recorder, name, name)
    client.begin()
    _send(client, first, keys[0])
    held = proxy.hold(TO_SERVER, _ends)
    _end(client, first, commit)
    assert held.caught.is_set(), "no end was delayed"
    second = Note(recorder, name, name)
    try:
        client.begin()
        _send(client, second, keys[0])
        proxy.release(held)
        assert held.answered.wait(ANSWER_S), "the delayed end got no answer"
        _send(client, second, keys[1])
        _end(client, second, not commit)
    except Failed as error:
        second.given_up(error)
        raise


def _ends(data: bytes) -> bool:
    return int.from_bytes(data[4:6], "big") == END_TXN


def _send(client: Client, note: Note, key: Key) -> None:
    value = note.sending(key)
    note.sent(value, client.send(key, value))


def _end(client: Client, note: Note, commit: bool) -> None:
    if commit:
        note.committing()
    client.end(commit=commit)
    if commit:
        note.committed()
    else:
        note.aborted()


def main(words: Sequence[str]) -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--rounds", type=int, default=3)
    rounds = flags.parse_args(words).rounds
    with tempfile.TemporaryDirectory() as directory:
        for new_broker in (kafka, gateway):
            found = play(new_broker, Path(directory), PROTOCOL_2 | PROTOCOL_1, rounds)
            for name, anomalies in found.items():
                line = {"broker": new_broker.__name__, "client": name, "delayed": 2 * rounds}
                print(json.dumps({**line, "anomalies": dict(anomalies)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
