"""`bookie audit`: watches over the copies of all ledgers, and mends them.

Any number may run: one of them is elected to audit, all of them mend. With `--once` there is one
audit, and the end comes when nothing is left to mend, or nothing more can be mended now.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

from ledger.adapters.system.process import EXIT_OK, ExitAsked, loop_factory
from ledger.errors import ForeignLayout, MetadataUnavailable
from ledger.ids import BookieId
from ledger.log import logger
from ledger.node import units
from ledger.node.process import EXIT_CONFIG, EXIT_UNREACHABLE, say_faults
from ledger.repair.config import RepairConfig

EXIT_STUCK: Final = 1
_REPORT_S: Final = 10.0
_TIME_S_MAX: Final = 10 * 365 * 86_400.0


def run(arguments: list[str]) -> int:
    """Audits and mends until a signal, or once. Returns the exit code; usage errors exit with 2."""
    flags = parser().parse_args(arguments)
    faults = faults_of(flags)
    if faults:
        say_faults(faults)
        return EXIT_CONFIG
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(flags))


def parser() -> argparse.ArgumentParser:
    default = RepairConfig()
    flags = argparse.ArgumentParser(
        prog="bookie audit",
        description="Find ledgers that lack copies, and make the copies. Any number may run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = flags.add_argument
    add("--zookeeper", default="127.0.0.1:2181", help="host:port by commas; /chroot at the end")
    add("--once", action="store_true", help="one audit; end when nothing more can be mended")
    add(
        "--delay-s",
        type=float,
        default=default.delay_s,
        help="a bookie may be away so long before its copies are made anew",
    )
    add(
        "--grace-s",
        type=float,
        default=default.grace_s,
        help="a writer may take so long to replace a bookie before it is fenced",
    )
    add(
        "--interval-s",
        type=float,
        default=default.interval_s,
        help="between two looks at all ledgers' metadata",
    )
    add(
        "--full-check-s",
        type=float,
        default=default.full_check_s,
        help="between two checks of which entries every bookie holds",
    )
    add(
        "--ledgers-at-once",
        type=int,
        default=default.ledgers_at_once,
        help="ledgers that this process mends at a time",
    )
    add(
        "--bytes-per-s",
        default=units.show_size(default.copy_bytes_per_s_max),
        help="copied by this process at most, such as 64MiB; 0: no bound",
    )
    add("--session", default="10s", help="silence after which ZooKeeper forgets this process")
    add("--tls-cert", type=Path, help="PEM certificate; with --tls-key and --tls-ca")
    add("--tls-key", type=Path, help="PEM private key")
    add("--tls-ca", type=Path, help="PEM certificates of who signs bookies")
    add("-o", "--output", choices=("text", "json"), default="text", help="what is printed")
    return flags


def faults_of(flags: argparse.Namespace) -> list[str]:
    """All that is wrong, not only the first; one line each."""
    faults: list[str] = []
    for name, smallest in (
        ("delay_s", 0.0),
        ("grace_s", 0.0),
        ("interval_s", 0.1),
        ("full_check_s", 0.1),
    ):
        value: float = getattr(flags, name)
        if not smallest <= value <= _TIME_S_MAX:
            flag = name.replace("_", "-")
            faults.append(f"--{flag} {value:g}: must be at least {smallest:g}, in seconds")
    if not 1 <= flags.ledgers_at_once <= 1000:
        faults.append(f"--ledgers-at-once {flags.ledgers_at_once}: must be between 1 and 1000")
    for name, parse in (
        ("zookeeper", units.servers),
        ("session", units.duration(0.2, 300)),
        ("bytes_per_s", units.size(0, 2**40)),
    ):
        try:
            setattr(flags, name, parse(getattr(flags, name)))
        except ValueError as fault:
            faults.append(f"--{name.replace('_', '-')} {getattr(flags, name)}: {fault}")
    tls = (flags.tls_cert, flags.tls_key, flags.tls_ca)
    if any(tls) and not all(tls):
        faults.append("--tls-cert, --tls-key and --tls-ca: all of them or none")
    faults += [f"{file}: no such file" for file in tls if file is not None and not file.is_file()]
    return faults


def _config(flags: argparse.Namespace) -> RepairConfig:
    return RepairConfig(
        delay_s=flags.delay_s,
        grace_s=flags.grace_s,
        interval_s=flags.interval_s,
        full_check_s=flags.full_check_s,
        ledgers_at_once=flags.ledgers_at_once,
        copy_bytes_per_s_max=flags.bytes_per_s,
    )


async def _run(flags: argparse.Namespace) -> int:
    from ledger.node.repair_node import RepairNode, TlsFiles

    tls = None
    if flags.tls_cert is not None:
        tls = TlsFiles(cert=flags.tls_cert, key=flags.tls_key, ca=flags.tls_ca)
    node = RepairNode(flags.zookeeper, flags.session, _owner(), _config(flags), tls)
    asked = ExitAsked()
    ended = asyncio.ensure_future(asked.wait())
    work = asyncio.ensure_future(_work(node, flags))
    try:
        await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return ended.result()
        return work.result()
    except MetadataUnavailable as error:
        say_faults([f"--zookeeper {flags.zookeeper}: {error}"])
        return EXIT_UNREACHABLE
    except ForeignLayout as error:
        say_faults([f"--zookeeper {flags.zookeeper}: {error}"])
        return EXIT_CONFIG
    finally:
        ended.cancel()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await node.stop()


def _owner() -> BookieId:
    """Names this process among all others, in locks and votes."""
    from ledger.adapters.system import machine

    host = socket.gethostname().partition(".")[0] or "host"
    return BookieId(f"audit-{host}-{os.getpid()}-{machine.new_instance().hex()[:8]}")


async def _work(node: Any, flags: argparse.Namespace) -> int:
    await node.start()
    say = _Say(flags.output == "json")
    if flags.once:
        return await _once(node, say)
    say.line("started", f"started audit={node.owner}", audit=node.owner)
    reporting = asyncio.create_task(_report(node, say))
    try:
        await node.serve()
    finally:
        reporting.cancel()
    return EXIT_OK


async def _report(node: Any, say: _Say) -> None:
    """What was mended since the last time, when there was anything."""
    before = node.counters()
    led = False
    while True:
        await asyncio.sleep(_REPORT_S)
        now = node.counters()
        if node.leads != led:
            led = node.leads
            say.log("this process is the auditor" if led else "another process is the auditor")
        if now != before:
            say.log("mended", **{key: value for key, value in now.items() if value})
            say.line("progress", None, **now)
        before = now


async def _once(node: Any, say: _Say) -> int:
    """One audit, then everything that can be mended. EXIT_STUCK when something is left."""
    left = await node.once(_bar if sys.stderr.isatty() else None)
    counters = node.counters()
    for ledger, reasons in left.items():
        why = "; ".join(reasons)
        say.line("left", f"ledger {ledger} is left: {why}", ledger=ledger, reasons=reasons)
    text = (
        f"mended {counters['ledgers']} ledgers, copied {counters['entries']} entries "
        f"({counters['bytes']} bytes); {len(left)} ledgers are left"
    )
    say.line("done", text, left=len(left), **counters)
    return EXIT_STUCK if left else EXIT_OK


def _bar(mended: int, left: int) -> None:
    """One line that is written over."""
    whole = mended + left
    filled = 30 * mended // whole if whole else 30
    bar = "#" * filled + "." * (30 - filled)
    end = "\n" if left == 0 else ""
    print(f"\r[{bar}] {mended} of {whole} ledgers mended ", end=end, file=sys.stderr, flush=True)


class _Say:
    """Lines on stdout, for people or one JSON object each; what happens later goes to the log."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def line(self, event: str, text: str | None, **fields: object) -> None:
        if self._as_json:
            text = json.dumps({"event": event, **fields}, ensure_ascii=False)
        if text is not None:
            with contextlib.suppress(OSError):  # nobody reads stdout: no reason to stop
                print(text, flush=True)

    def log(self, what: str, **fields: object) -> None:
        if not self._as_json:
            logger().info(what, **fields)
