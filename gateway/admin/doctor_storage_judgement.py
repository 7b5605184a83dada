"""Judges facts about bookies, ledgers and settings. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from gateway.admin.doctor_facts import Copies, Idle, LedgerFacts, Store
from gateway.admin.doctor_findings import Finding, counted, fail, listed, ok, warn, worst
from ledger.ports.bookies import DEFAULT_RACK


def judge_racks(
    stores: Sequence[Store],
    topics: Collection[Copies],
    gateway_racks: Collection[str] = (),
    noun: str = "bookie",
) -> Finding:
    """Compare the bookies, or the brokers of Kafka, with the copies that topics ask for."""
    writable = [each for each in stores if each.writable]
    most = max((each.copies for each in topics), default=1)
    short = sorted(each.topic for each in topics if each.copies > len(writable))
    if short or not writable:
        text = f"{counted(len(writable), noun)} take writes"
        wants = f"; {most} copies are asked for by {listed(short)}" if short else ""
        return fail("racks", text + wants, f"start more {noun}s")
    racks = Counter(each.rack for each in writable)
    found = [_judge_spread(racks, most, gateway_racks, noun)]
    if 1 < most == len(writable):
        text = f"no {noun} is spare: {len(writable)} {noun}s, and {most} copies"
        found.append(warn("racks", text, f"start one more {noun}, so that a lost one is replaced"))
    return worst(found)


def _judge_spread(
    racks: Counter[str], most: int, gateway_racks: Collection[str], noun: str
) -> Finding:
    named = {rack for rack in racks if rack and rack != DEFAULT_RACK}
    others = {f"/{each.lstrip('/')}" for each in gateway_racks if each}
    where = f"{counted(racks.total(), noun)} in {counted(len(racks), 'rack')}"
    if named and len(named) < len(racks):
        without = racks.total() - sum(racks[each] for each in named)
        return warn("racks", f"{where}: {without} without a rack of its own", "pass --rack to all")
    if most > 1 and len(racks) == 1 and len(others | named) > 1:
        return warn("racks", f"{where}, although there are {len(others | named)} racks")
    if noun == "bookie" and named and others - named:
        text = f"no bookie is in rack {listed(sorted(others - named))} of a gateway"
        return warn("racks", text, "give bookies and gateways the same names of racks")
    return ok("racks", f"{where} for at most {counted(most, 'copy', 'copies')}")


def judge_ledgers(facts: LedgerFacts) -> Finding:
    found = [ok("ledgers", f"{counted(facts.whole, facts.noun)} with all copies")]
    noun = facts.noun
    for names, what in (
        (facts.lost, "entries that no bookie has"),
        (facts.unreachable, "entries without a bookie that is present"),
        (facts.unreadable, "metadata that cannot be read"),
    ):
        if names:
            found.append(
                fail("ledgers", f"{counted(len(names), noun)} with {what}: {_some(names)}")
            )
    if facts.lacking:
        text = f"{counted(len(facts.lacking), noun)} under-replicated: {_some(facts.lacking)}"
        more = f" ({facts.unexamined} of them not examined)" if facts.unexamined else ""
        found.append(warn("ledgers", text + more))
    if facts.away:
        found.append(warn("ledgers", f"absent, and named by ledgers: {_some(facts.away)}"))
    if not facts.auditor:
        fix = "start `bookie audit`, or bookies with `--audit`"
        found.append(warn("ledgers", "no auditor runs, so lost copies are not replaced", fix))
    return worst(found)


def _some(names: Sequence[str]) -> str:
    return listed(names, 5)


def judge_settings(idle: Sequence[Idle]) -> Finding:
    if idle:
        names = [f"{each.setting} of {each.resource}" for each in idle]
        return warn("settings", f"{counted(len(idle), 'setting')} without effect: {listed(names)}")
    return ok("settings", "every setting that was changed has an effect")
