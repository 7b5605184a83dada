"""Runs the checks of `gateway doctor`, all at the same time, each with a bound of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from gateway.admin import doctor_probes as probes
from gateway.admin import doctor_storage_probes as storage
from gateway.admin.client import AdminError, Unreachable
from gateway.admin.doctor_findings import CHECKS, Finding, State, unknown
from gateway.admin.doctor_site import Site
from ledger.errors import LedgerError

Probe = Callable[[Site, float], Awaitable[Finding]]
"""Collects the facts of one check and judges them. The number is its bound of time in seconds."""


def _asking(check: Callable[[Site], Awaitable[Finding]]) -> Probe:
    return lambda site, _: check(site)


PROBES: Final[Mapping[str, Probe]] = {
    "bootstrap": _asking(probes.check_bootstrap),
    "address": _asking(probes.check_address),
    "dns": _asking(probes.check_dns),
    "clocks": _asking(probes.check_clocks),
    "sync": probes.check_sync,
    "disk": storage.check_disk,
    "files": _asking(probes.check_files),
    "zookeeper": _asking(storage.check_zookeeper),
    "versions": _asking(probes.check_versions),
    "racks": _asking(storage.check_racks),
    "leaders": _asking(probes.check_leaders),
    "ledgers": _asking(storage.check_ledgers),
    "lag": _asking(probes.check_lag),
    "settings": _asking(probes.check_settings),
}
_SHARE = 0.9  # of the bound of a check: the bound of a single step inside it


async def diagnose(
    site: Site,
    only: Collection[str] = (),
    bound_s: float = 20.0,
    probes_by_name: Mapping[str, Probe] = PROBES,
) -> list[Finding]:
    """Run the checks in `only`, or all, and return their findings in the order of the checks.

    A check that takes longer than `bound_s`, or that fails itself, is unknown with the reason.
    """
    chosen = [each.name for each in CHECKS if not only or each.name in only]
    runs = [_bounded(name, probes_by_name[name], site, bound_s) for name in chosen]
    return await asyncio.gather(*runs)


async def _bounded(name: str, probe: Probe, site: Site, bound_s: float) -> Finding:
    try:
        async with asyncio.timeout(bound_s):
            return await probe(site, bound_s * _SHARE)
    except TimeoutError:
        return unknown(name, f"not done within {bound_s:g} s", "allow more time with --timeout")
    except (AdminError, Unreachable, LedgerError, OSError) as error:
        return unknown(name, str(error))
    except Exception as error:  # noqa: BLE001 - one check that fails must not end the others
        return unknown(name, f"this check failed itself: {type(error).__name__}: {error}")


async def reached_none(site: Site) -> bool:
    """Return whether no server answered: neither in Kafka's protocol, nor a ZooKeeper."""
    for shared in (site.cluster, site.storage):
        try:
            await shared.get()
        except (Unreachable, LedgerError, OSError):
            continue
        except AdminError:
            return False  # it answered, with an error
        return False
    return True


def failed(found: Sequence[Finding]) -> bool:
    return any(each.state is State.fail for each in found)
