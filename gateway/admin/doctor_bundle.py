"""Writes the bundle of `gateway doctor`: what a helper needs to see, without records and secrets.

    MANIFEST      the parts, their sizes, and what was left out with the reason
    report.json   the findings
    *.json        versions, settings, topics, groups, ledgers and bookies
    metrics/      the metrics pages that can be reached
    logs/         the ends of the log files that were named

No part reads a record. Every part goes through `gateway.admin.redaction`.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from gateway.admin import doctor_settings as settings
from gateway.admin.bookies import list_bookies
from gateway.admin.client import AdminError, Unreachable
from gateway.admin.doctor_site import CONNECT_S, Report, Site
from gateway.admin.doctor_storage_probes import answered_bookies
from gateway.admin.groups import committed, find_group, list_groups, state_row
from gateway.admin.ledgers import list_ledgers
from gateway.admin.redaction import HIDDEN, hide, hide_in_text, is_secret
from gateway.admin.topics import EARLIEST, LATEST, offsets
from ledger.command_line.output import as_json
from ledger.command_line.version import describe
from ledger.errors import LedgerError

BYTES_MAX: Final = 20 * 1024 * 1024
_SPARE_BYTES: Final = 256 * 1024  # of the bound: for the manifest, and for the heads of the parts
_PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
_LOG_BYTES_MAX: Final = 2 * 1024 * 1024
_GROUPS_MAX: Final = 1_000
_HEAD_S = 5.0
_PASSWORD_TYPE = 9  # value of config_type

Part = tuple[str, Callable[[], Awaitable[Any]]]
"""The name of a part, and what collects it: text, or plain data for JSON."""


class Written(NamedTuple):
    """The contents of a bundle, in numbers."""

    parts: int
    left_out: int
    size_bytes: int


async def write_bundle(
    site: Site,
    report: Sequence[dict[str, Any]],
    place: Path,
    logs: Sequence[Path],
    bound_s: float,
) -> Written | OSError:
    """Write the bundle, as a whole or not at all. Returns the error if it cannot be written."""
    contents: list[tuple[str, bytes]] = [("report.json", _encoded(list(report)))]
    left_out: list[str] = []
    room = BYTES_MAX - _SPARE_BYTES - len(contents[0][1])
    async for name, data, reason in _collected(site, logs, bound_s):
        if data is None:
            left_out.append(f"{name}: {reason}")
        elif len(data) > room:
            left_out.append(f"{name}: {len(data):,} bytes, beyond the bound of the bundle")
        else:
            contents.append((name, data))
            room -= len(data)
    contents.insert(0, ("MANIFEST", _manifest(contents, left_out)))
    try:
        size_bytes = _write(place, contents, site.clock.now_ms() // 1000)
    except OSError as error:
        return error
    return Written(len(contents), len(left_out), size_bytes)


async def _collected(
    site: Site, logs: Sequence[Path], bound_s: float
) -> AsyncIterator[tuple[str, bytes | None, str]]:
    """Yield each part with its bytes, or None with the reason why it could not be collected."""
    for name, collect in [*_parts(site), *(await _pages(site)), *_log_parts(logs)]:
        try:
            async with asyncio.timeout(bound_s):
                data = _encoded(await collect())
        except TimeoutError:
            yield name, None, f"not collected within {bound_s:g} s"
        except (AdminError, Unreachable, LedgerError, OSError) as error:
            yield name, None, hide_in_text(str(error))
        except Exception as error:  # noqa: BLE001 - a part that fails must not cost the others
            yield name, None, hide_in_text(f"{type(error).__name__}: {error}")
        else:
            yield name, data, ""


def _encoded(value: Any) -> bytes:
    """Return text or JSON without secrets, in UTF-8."""
    text = hide_in_text(value) if isinstance(value, str) else as_json(hide(value))
    return (text + "\n").encode(errors="replace")


def _parts(site: Site) -> list[Part]:
    return [
        ("versions.json", lambda: _versions(site)),
        ("brokers.json", lambda: _brokers(site)),
        ("settings/brokers.json", lambda: _broker_settings(site)),
        ("settings/topics.json", lambda: _topic_settings(site)),
        ("topics.json", lambda: _topics(site)),
        ("groups.json", lambda: _groups(site)),
        ("bookies.json", lambda: _bookies(site)),
        ("ledgers.json", lambda: _ledgers(site)),
    ]


async def _versions(site: Site) -> Any:
    rows: list[dict[str, Any]] = [{"process": "this command", "build": describe()}]
    for each in await site.reports.get():
        rows.append({"process": each.name, "build": each.fields.get("build"), "fault": each.fault})
    with suppress(AdminError, Unreachable, LedgerError):
        for bookie in await answered_bookies(site):
            rows.append({"process": f"bookie {bookie.name}", "build": bookie.release or None})
    return rows


async def _brokers(site: Site) -> Any:
    view = await site.cluster.get()
    reports = {each.broker.node_id: each for each in await site.reports.get()}
    return {
        "cluster_id": view.cluster_id,
        "brokers": [
            {
                "node_id": each.node_id,
                "address": f"{each.host}:{each.port}",
                "rack": view.racks.get(each.node_id),
                "clock_ahead_ms": reports[each.node_id].ahead_ms,
                "process": reports[each.node_id].fields,
                "fault": reports[each.node_id].fault,
            }
            for each in view.brokers
        ],
    }


def _plain_configs(configs: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Return the values of settings. Secrets are hidden, and defaults are left out."""
    return {
        name: {
            each.name: HIDDEN
            if each.is_sensitive
            or is_secret(each.name)
            or getattr(each, "config_type", 0) == _PASSWORD_TYPE
            else each.value
            for each in rows
            if each.value is not None
        }
        for name, rows in configs.items()
    }


async def _broker_settings(site: Site) -> Any:
    found: dict[str, Any] = {}
    for broker in (await site.cluster.get()).brokers:
        try:
            async with site.client_of(broker) as client:
                found |= _plain_configs(await settings.broker_configs(client, [broker.node_id]))
        except (AdminError, Unreachable) as error:
            found[str(broker.node_id)] = {"fault": str(error)}
    return found


async def _topic_settings(site: Site) -> Any:
    names = [each.name for each in (await site.cluster.get()).topics]
    async with site.client() as client:
        return _plain_configs(await settings.topic_configs(client, names))


async def _topics(site: Site) -> Any:
    topics = (await site.cluster.get()).topics
    wanted = {each.name: [p.partition_index for p in each.partitions] for each in topics}
    async with site.client() as client:
        first = await offsets(client, wanted, EARLIEST)
        last = await offsets(client, wanted, LATEST)
    return [
        {
            "name": topic.name,
            "topic_id": str(getattr(topic, "topic_id", "")) or None,
            "internal": topic.is_internal,
            "partitions": [
                {
                    "partition": each.partition_index,
                    "leader": each.leader_id,
                    "leader_epoch": getattr(each, "leader_epoch", None),
                    "replicas": list(each.replica_nodes),
                    "isr": list(each.isr_nodes),
                    "log_start_offset": first.get((topic.name, each.partition_index)),
                    "log_end_offset": last.get((topic.name, each.partition_index)),
                }
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]


async def _groups(site: Site) -> Any:
    rows: list[dict[str, Any]] = []
    async with site.client() as client:
        for group in (await list_groups(client))[:_GROUPS_MAX]:
            name = group["group"]
            state = await state_row(client, await find_group(client, name))
            positions = await committed(client, name)
            rows.append(
                {
                    **group,
                    **state,
                    "offsets": [
                        {"topic": topic, "partition": index, "offset": each.offset}
                        for (topic, index), each in sorted(positions.items())
                    ],
                }
            )
    return rows


async def _bookies(site: Site) -> Any:
    storage = await site.storage.get()
    clocks = {each.name: each for each in await answered_bookies(site)}
    return [
        {
            **row,
            "clock_ahead_ms": clocks[row["bookie"]].ahead_ms if row["bookie"] in clocks else None,
        }
        for row in await list_bookies(storage)
    ]


async def _ledgers(site: Site) -> Any:
    return await list_ledgers(await site.storage.get())


# -- metrics ---------------------------------------------------------------------------------------


async def _pages(site: Site) -> list[Part]:
    try:
        reports = await site.reports.get()
    except (AdminError, Unreachable):
        return []
    return [
        (f"metrics/gateway-{each.broker.node_id}.txt", _page_of(each))
        for each in reports
        if each.fields.get("metrics_port")
    ]


def _page_of(report: Report) -> Callable[[], Awaitable[str]]:
    return lambda: _page(report.broker.host, int(report.fields["metrics_port"]))


async def _page(host: str, port: int) -> str:
    """Return the metrics page of a gateway, up to 2 MiB of it. Raises AdminError if refused."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(_HEAD_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        status = answer.partition(b"\r\n")[0].decode(errors="replace")
        if " 200 " not in f"{status} ":
            raise AdminError(f"the metrics page answers {status!r}", "REFUSED")
        text = b""
        while len(text) < _PAGE_BYTES_MAX and (more := await reader.read(65_536)):
            text += more
        return text[:_PAGE_BYTES_MAX].decode(errors="replace")
    finally:
        writer.close()


# -- logs ------------------------------------------------------------------------------------------


def _log_parts(logs: Sequence[Path]) -> list[Part]:
    return [(f"logs/{number}-{log.name}", _log_of(log)) for number, log in enumerate(logs, 1)]


def _log_of(log: Path) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        with log.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES_MAX)
            file.seek(start)
            text = file.read(_LOG_BYTES_MAX).decode(errors="replace")
        return text.partition("\n")[2] if start else text

    return read


# -- the file --------------------------------------------------------------------------------------


def _manifest(contents: Sequence[tuple[str, bytes]], left_out: Sequence[str]) -> bytes:
    lines = [
        f"Bundle of gateway doctor, {describe()}.",
        "It has no records, no keys of records, and no secrets that gateway recognises.",
        "",
        *(f"{len(data):>10,}  {name}" for name, data in contents),
    ]
    lines += ["", "Left out:", *left_out] if left_out else ["", "Left out: nothing"]
    return ("\n".join(lines) + "\n").encode()


def _write(place: Path, contents: Sequence[tuple[str, bytes]], time_s: int) -> int:
    """Write the archive beside its place, readable by its owner only, then rename it."""
    directory = place.absolute().parent
    file, name = tempfile.mkstemp(dir=directory, prefix=f".{place.name}-")
    try:
        with os.fdopen(file, "wb") as out:
            _archive(out, contents, time_s)
            out.flush()
            os.fsync(out.fileno())
            size_bytes = out.tell()
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return size_bytes


def _archive(out: IO[bytes], contents: Sequence[tuple[str, bytes]], time_s: int) -> None:
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member, data in contents:
            info = tarfile.TarInfo(f"doctor/{member}")
            info.size, info.mode, info.mtime = len(data), 0o600, time_s
            archive.addfile(info, io.BytesIO(data))
