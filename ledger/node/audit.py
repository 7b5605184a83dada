"""`bookie audit`: finds under-replicated ledgers and re-replicates them.

Any number of processes may run: one is elected auditor, all of them copy. With `--once` the process
runs one audit, copies, and ends when no ledger is left or no more can be copied now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ledger.adapters.links.tls_identity import TlsFault
from ledger.adapters.system.hourly import warn_each_hour
from ledger.adapters.system.process import ExitAsked, loop_factory
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_OK, EXIT_UNREACHABLE
from ledger.command_line.output import as_json, emit
from ledger.command_line.program import Flags, Option, Value
from ledger.command_line.progress import ProgressLine
from ledger.command_line.secret_values import SecretFault
from ledger.command_line.settings import Settings
from ledger.command_line.zookeeper_settings import (
    unreachable,
    zookeeper_faults,
    zookeeper_security,
)
from ledger.errors import (
    AccessDenied,
    ForeignLayout,
    MetadataUnavailable,
    NotEnoughBookies,
    OpenToAnyone,
)
from ledger.ids import LedgerId
from ledger.log import logger
from ledger.node.audit_shapes import DONE, LEFT, PROGRESS, STARTED
from ledger.node.checks import tls_file_faults
from ledger.node.http_port import HttpUnavailable, start_http
from ledger.node.options import AUDIT_OPTIONS, answered, options_command
from ledger.node.process import print_faults
from ledger.node.tls import identity_of_files, keep_current
from ledger.ports.bookies import BookieTransport
from ledger.repair.config import RepairConfig
from ledger.tasks import start_restarting

EXIT_STUCK: Final = 1
_REPORT_S: Final = 10.0
_LEDGERS_SHOWN: Final = 10


def _audit(flags: Flags) -> int:
    """Audit and copy until a signal, or once. Returns the exit code."""
    settings = settings_of(flags)
    code = answered(settings, "table" if flags.output == "text" else flags.output)
    if code is not None:
        return code
    faults = faults_of(settings)
    if faults:
        print_faults(faults, as_json=_wants_json(flags))
        return EXIT_CONFIG
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(settings, flags))


def settings_of(flags: Flags) -> Settings:
    """Return the settings from these flags, the environment and the file."""
    return Settings(flags, AUDIT_OPTIONS)


def faults_of(settings: Settings) -> list[str]:
    """Return all faults, a line for each."""
    faults = [*settings.faults, *_tls_faults(settings), *zookeeper_faults(settings)]
    if settings.flags.output == "toml":
        faults.append("--output toml: is only for --print-config; pass text or json")
    return faults


audit: Final = options_command(
    "audit",
    """Find under-replicated ledgers and re-replicate them.

    Any number of processes may run: one is elected auditor, all of them copy.
    """,
    AUDIT_OPTIONS,
    _audit,
    Option(["--once"], is_flag=True, help="Run one audit; end when no more can be copied now."),
    Option(
        ["-o", "--output"],
        type=Value("format", units.one_of("text", "json", "toml")),
        default="text",
        help="Form of what is printed: text or json; of --print-config also toml.",
    ),
    shapes=(STARTED, PROGRESS, LEFT, DONE),
)


def _wants_json(flags: Flags) -> bool:
    return flags.output == "json"


def _tls_files(settings: Settings) -> tuple[Path | None, Path | None, Path | None]:
    return settings["tls-cert"], settings["tls-key"], settings["tls-ca"]


def _tls_faults(settings: Settings) -> list[str]:
    names = ("tls-cert", "tls-key", "tls-ca")
    faults: list[str] = []
    files = _tls_files(settings)
    if any(files) and not all(files):
        faults.append("--tls-cert, --tls-key and --tls-ca: pass all of them or none")
    for name, file in zip(names, files, strict=True):
        if file is not None:
            faults += tls_file_faults(settings.place(name), file, secret=name == "tls-key")
    return faults


def _config(settings: Settings) -> RepairConfig:
    return RepairConfig(
        delay_s=settings["delay"],
        grace_s=settings["grace"],
        interval_s=settings["interval"],
        full_check_s=settings["full-check-interval"],
        ledgers_at_once=settings["ledgers-at-once"],
        copy_bytes_per_s_max=settings["copy-rate"],
    )


async def _run(settings: Settings, flags: Flags) -> int:
    from ledger.node.repair_node import RepairNode, new_owner

    try:
        tls = identity_of_files(*_tls_files(settings), settings["tls-roles"])
    except TlsFault as fault:
        faults = [f"{settings.place('tls-cert')}: {fault}"]
        print_faults(faults, as_json=_wants_json(flags))
        return EXIT_CONFIG
    keep_current(tls)
    node = RepairNode(
        settings["zookeeper"],
        settings["session"],
        new_owner(),
        _config(settings),
        tls,
        BookieTransport(settings["bookie-transport"]),
        zookeeper_security(settings),
    )
    try:
        http = await start_http(settings["http-host"], settings["http-port"], "audit", node)
    except HttpUnavailable as error:
        fault = f"{settings.place('http-port')}: {error}"
        print_faults([fault], as_json=_wants_json(flags))
        return EXIT_CONFIG
    asked = ExitAsked()
    ended = asyncio.ensure_future(asked.wait())
    work = asyncio.ensure_future(_work(node, flags, asked.ready))
    try:
        await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return ended.result()
        return work.result()
    except (AccessDenied, ForeignLayout, OpenToAnyone, SecretFault) as error:
        fault = f"{settings.place('zookeeper')}: {error}"
        print_faults([fault], as_json=_wants_json(flags))
        return EXIT_CONFIG
    except MetadataUnavailable as error:
        fault = unreachable(settings.place("zookeeper"), settings["zookeeper"], error)
        print_faults([fault], code="UNREACHABLE", as_json=_wants_json(flags))
        return EXIT_UNREACHABLE
    finally:
        ended.cancel()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await node.stop()
        if http is not None:
            await http.stop()


async def _work(node: Any, flags: Flags, ready: Callable[[], None]) -> int:
    await node.start()
    report = _Report(_wants_json(flags))
    if flags.once:
        return await _once(node, report)
    report.line("started", f"started audit={node.owner}", audit=node.owner)
    ready()
    warn_each_hour(asyncio.get_running_loop(), node.warning)
    reporting = start_restarting("the report of progress", lambda: _report_progress(node, report))
    try:
        await node.serve()
    finally:
        reporting.cancel()
    return EXIT_OK


async def _report_progress(node: Any, report: _Report) -> None:
    """Report every ten seconds what was copied since the last report, if anything was."""
    before = node.counters()
    led = False
    while True:
        await asyncio.sleep(_REPORT_S)
        now = node.counters()
        if node.leads != led:
            led = node.leads
            report.log("this process is the auditor" if led else "another process is the auditor")
        if now != before:
            report.log("re-replicated", **{key: value for key, value in now.items() if value})
            report.line("progress", None, **now)
        before = now


async def _once(node: Any, report: _Report) -> int:
    """Run one audit, then copy all that can be copied. Returns EXIT_STUCK if ledgers are left."""
    progress = ProgressLine()

    def show(done: int, left: int) -> None:
        progress.bar(done, done + left, "ledgers")

    try:
        left: dict[LedgerId, tuple[str, ...]] = await node.once(show)
    except NotEnoughBookies as error:
        fault = f"{error}, so no ledger could be checked: start the bookies, then audit again"
        print_faults([fault], code="NO_BOOKIE_ANSWERS", as_json=report.as_json)
        return EXIT_STUCK
    finally:
        progress.end()
    counters = node.counters()
    for ledger, reasons in left.items():
        report.line("left", None, ledger=ledger, reasons=reasons)
    for line in _left_lines(left):
        report.text(line)
    text = (
        f"re-replicated {counters['ledgers']} ledgers, copied {counters['entries']} entries "
        f"({counters['bytes']} bytes); {len(left)} ledgers are left"
    )
    report.line("done", text, left=len(left), **counters)
    return EXIT_STUCK if left else EXIT_OK


def _left_lines(left: Mapping[LedgerId, tuple[str, ...]]) -> Iterator[str]:
    """Yield a line for all ledgers that are left for the same reasons."""
    by_reasons: dict[tuple[str, ...], list[LedgerId]] = {}
    for ledger, reasons in left.items():
        by_reasons.setdefault(reasons, []).append(ledger)
    for reasons, ledgers in by_reasons.items():
        shown = ", ".join(map(str, ledgers[:_LEDGERS_SHOWN]))
        more = len(ledgers) - _LEDGERS_SHOWN
        if more > 0:
            shown += f" and {more} more (-o json lists all)"
        who = f"ledger {shown} is" if len(ledgers) == 1 else f"ledgers {shown} are"
        yield f"{who} left: {'; '.join(reasons)}"


class _Report:
    """Lines on stdout, for people or one JSON object each; progress of a server goes to the log."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def line(self, event: str, text: str | None, **fields: object) -> None:
        if self.as_json:
            text = as_json({"event": event, **fields}, indent=None)
        if text is not None:
            with contextlib.suppress(OSError):  # a closed stdout is no reason to stop
                emit(text)

    def text(self, text: str) -> None:
        """Print a line for people only."""
        if not self.as_json:
            self.line("text", text)

    def log(self, event: str, **fields: object) -> None:
        if not self.as_json:
            logger().info(event, **fields)
