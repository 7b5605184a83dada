"""The command `gateway doctor`. Its modules are imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import doctor_shapes
from gateway.admin.doctor_findings import BY_NAME, CHECKS, LOCAL, Finding, summary
from gateway.admin.requests import storage_option, storage_settings, tls_option
from ledger.command_line import units
from ledger.command_line.exit_codes import (
    EXIT_DISK,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_UNREACHABLE,
)
from ledger.command_line.output import Output, fail, note, output_option, usage
from ledger.command_line.program import Command, Value, nearest, option
from ledger.command_line.progress import waiting
from ledger.command_line.terminal import columns

if TYPE_CHECKING:
    from gateway.admin.doctor_site import Site

_TIMEOUT_S = "20s"
_TIMEOUT_S_MAX = 600


@click.command("doctor", cls=Command)
@option(
    "--only",
    metavar="CHECK",
    multiple=True,
    help="Check only this; repeat for several. --list shows the checks.",
)
@option("--list", "list_only", is_flag=True, help="List the checks, and do none.")
@option(
    "--data",
    type=Value("dir", units.path),
    help="Data directory on this machine, whose disk and syncs are measured.",
)
@option(
    "--timeout",
    type=Value("duration", units.duration(1, _TIMEOUT_S_MAX)),
    default=_TIMEOUT_S,
    help="Longest time for one check.",
)
@option(
    "--bundle",
    metavar="FILE.tar.gz",
    type=Value("file", units.path),
    help="Also write the findings, settings and lists to this file, without records and secrets.",
)
@option(
    "--log",
    "logs",
    metavar="FILE",
    type=Value("file", units.path),
    multiple=True,
    help="Add the end of this log file to the bundle; repeat for several.",
)
@storage_option
@tls_option
@output_option(doctor_shapes.FOUND, doctor_shapes.LISTED)
def doctor(
    only: Sequence[str],
    list_only: bool,
    data: Path | None,
    timeout: float,
    bundle: Path | None,
    logs: Sequence[Path],
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> int:
    """Check servers, disks and clocks, and print a fix for what is wrong.

    Exits with 1 if a check fails, and with 69 if no server answers. Nothing is changed.
    """
    _check_options(only, data, bundle, logs, output)
    if list_only:
        _list(only, output)
        return EXIT_OK
    settings = storage_settings(bootstrap, zookeeper, tls, output)

    from gateway.admin.doctor import failed
    from gateway.admin.doctor_site import Site
    from gateway.interrupt import run_interruptibly

    site = Site(settings.servers, settings.zookeeper, data, settings.tls, settings.transport)
    try:
        found, no_server, written = run_interruptibly(_run(site, only, timeout, bundle, logs))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    _show(found, output)
    if bundle is not None:
        _report_bundle(bundle, written, output)
    if no_server:
        return EXIT_UNREACHABLE
    return EXIT_FAILED if failed(found) else EXIT_OK


def _check_options(
    only: Sequence[str],
    data: Path | None,
    bundle: Path | None,
    logs: Sequence[Path],
    output: Output,
) -> None:
    for name in only:
        if name not in BY_NAME:
            hint = nearest(name, list(BY_NAME))
            usage(f"--only {name}: there is no such check{hint}; --list shows all", output)
    if data is not None and not data.is_dir():
        usage(f"--data {data}: no such directory; name the data directory of a bookie", output)
    if bundle is not None and (bundle.is_dir() or not bundle.absolute().parent.is_dir()):
        usage(f"--bundle {bundle}: must be a file in a directory that exists", output)
    if logs and bundle is None:
        usage("--log: adds to a bundle; pass --bundle FILE.tar.gz too", output)
    for log in logs:
        if not log.is_file():
            usage(f"--log {log}: no such file", output)


def _list(only: Sequence[str], output: Output) -> None:
    rows = [
        {
            "check": each.name,
            "meaning": each.meaning,
            "warns": each.warns,
            "fails": each.fails,
            "fix": each.fix,
        }
        for each in CHECKS
        if not only or each.name in only
    ]
    output.show(rows, shape=doctor_shapes.LISTED)


async def _run(
    site: Site, only: Sequence[str], bound_s: float, bundle: Path | None, logs: Sequence[Path]
) -> tuple[list[Finding], bool, Any]:
    from gateway.admin.doctor import diagnose, reached_none

    with waiting("checking"):
        try:
            found = await diagnose(site, frozenset(only), bound_s)
            no_server = await reached_none(site) if not only or set(only) - LOCAL else False
            written: Any = None
            if bundle is not None:
                from gateway.admin.doctor_bundle import write_bundle

                written = await write_bundle(site, rows_of(found), bundle, logs, bound_s)
        finally:
            await site.close()
    return found, no_server, written


def rows_of(found: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "check": each.check,
            "state": each.state.value,
            "finding": each.finding,
            "fix": each.fix or None,
        }
        for each in found
    ]


def _show(found: Sequence[Finding], output: Output) -> None:
    rows = rows_of(found)
    below = [summary(found)]
    if columns(sys.stdout) is not None:  # a terminal may have cut what to do
        below = [*_whole(rows), *below]
    output.show(rows, after="".join(f"\n{line}" for line in below))


def _whole(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong and what to do, whole, with an empty line at the end."""
    lines: list[str] = []
    for row in rows:
        if row["state"] in ("warn", "fail"):
            lines.append(f"{row['check']}: {row['finding']}")
            lines += [f"  fix: {row['fix']}"] if row["fix"] else []
    return [*lines, ""] if lines else []


def _report_bundle(bundle: Path, written: Any, output: Output) -> None:
    if isinstance(written, OSError):
        fail(EXIT_DISK, f"--bundle {bundle}: {written.strerror or written}", "DISK", output)
    left_out = f", {written.left_out} left out" if written.left_out else ""
    note(f"wrote {bundle}: {written.parts} parts, {written.size_bytes:,} bytes{left_out}")
