"""Judges facts: which state a check is in, in which words. Pure: no I/O, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gateway.admin import doctor_findings as form
from gateway.admin.doctor_facts import (
    Answer,
    ClockReading,
    Files,
    Lag,
    Level,
    Lookup,
    NoLeader,
    Release,
    Session,
    Space,
    SyncTimes,
)
from gateway.admin.doctor_findings import (
    Finding,
    counted,
    fail,
    listed,
    ok,
    seconds,
    unknown,
    warn,
    worst,
)
from ledger.command_line.output import show_bytes

THIS_MACHINE: Final = "this machine"


def judge_bootstrap(answers: Sequence[Answer]) -> Finding:
    faults = [str(each.fault) for each in answers if each.fault is not None]
    if not faults:
        one = "answers" if len(answers) == 1 else "answer"
        return ok("bootstrap", f"{listed([each.server for each in answers])} {one}")
    if len(faults) == len(answers):
        return fail("bootstrap", listed(faults), _fix_of(answers))
    text = f"{len(faults)} of {len(answers)} do not answer: {listed(faults)}"
    return warn("bootstrap", text, _fix_of(answers))


def _fix_of(answers: Sequence[Answer]) -> str:
    """Return the fix of all faults, or nothing for that of the check."""
    fixes = {each.fix for each in answers if each.fault is not None}
    return fixes.pop() if len(fixes) == 1 else ""


def judge_address(answers: Sequence[Answer], cluster_id: str | None) -> Finding:
    faults = [f"broker at {each.server}: {each.fault}" for each in answers if each.fault]
    others = [
        f"at {each.server} another cluster answers ({each.cluster_id} instead of {cluster_id})"
        for each in answers
        if each.fault is None and each.cluster_id != cluster_id
    ]
    if faults or others:
        return fail("address", listed(faults + others), "" if others else _fix_of(answers))
    if not answers:
        return unknown("address", "the servers name no broker")
    return ok("address", f"{counted(len(answers), 'broker')} can be reached at the address given")


def judge_dns(lookups: Sequence[Lookup]) -> Finding:
    faults = [f"{each.name}: {each.fault}" for each in lookups if each.fault is not None]
    if faults:
        return fail("dns", listed(faults))
    slow = [
        f"{each.name} took {seconds(each.took_s)}"
        for each in lookups
        if each.took_s > form.LOOKUP_WARN_S
    ]
    if slow:
        return warn("dns", listed(slow), "see which name server in /etc/resolv.conf is slow")
    if not lookups:
        return ok("dns", "all servers are given as addresses")
    return ok("dns", f"{counted(len(lookups), 'name')} resolved: {listed(_names(lookups))}")


def _names(lookups: Iterable[Lookup]) -> list[str]:
    return [each.name for each in lookups]


def judge_clocks(readings: Sequence[ClockReading]) -> Finding:
    """Compare all clocks with the median one. Of two clocks, this machine's is the reference."""
    silent = [f"{each.process}: {each.reason}" for each in readings if each.ahead_ms is None]
    known = [(each.ahead_ms, each) for each in readings if each.ahead_ms is not None]
    if not known:
        reason = listed(silent) or "no process reports its clock"
        return unknown("clocks", reason)
    here = ClockReading(THIS_MACHINE, 0.0)
    ordered = sorted([(0.0, here), *known], key=lambda pair: pair[0])
    median_ms, reference = (0.0, here) if len(known) == 1 else ordered[len(ordered) // 2]
    off: list[tuple[float, str]] = []
    for ahead_ms, each in ordered:
        apart_ms = ahead_ms - median_ms
        certain_ms = abs(apart_ms) - each.within_ms - reference.within_ms
        if certain_ms >= form.CLOCK_WARN_MS:
            way = "ahead of" if apart_ms > 0 else "behind"
            text = f"{each.process} is {seconds(abs(apart_ms) / 1000)} {way} {reference.process}"
            off.append((certain_ms, text))
    if off:
        off.sort(reverse=True)
        judged = fail if off[0][0] >= form.CLOCK_FAIL_MS else warn
        return judged("clocks", listed([text for _, text in off]))
    if silent:
        return unknown("clocks", listed(silent))
    apart_s = (ordered[-1][0] - ordered[0][0]) / 1000
    return ok("clocks", f"{counted(len(ordered), 'clock')} within {seconds(max(apart_s, 0.001))}")


def judge_sync(times: SyncTimes) -> Finding:
    if times.fault is not None:
        return fail("sync", f"{times.place}: {times.fault}")
    median_ms, worst_ms = statistics.median(times.took_ms), max(times.took_ms)
    text = (
        f"{times.place}: {len(times.took_ms)} syncs of 64 KiB took {median_ms:.1f} ms each "
        f"(median), the slowest {worst_ms:.1f} ms"
    )
    if median_ms >= form.SYNC_FAIL_MS:
        return fail("sync", text)
    if median_ms >= form.SYNC_WARN_MS or worst_ms >= form.SYNC_WORST_WARN_MS:
        return warn("sync", text)
    return ok("sync", text)


def judge_disk(spaces: Sequence[Space]) -> Finding:
    if not spaces:
        return unknown("disk", "no directory and no bookie is known", "pass --data DIR")
    return worst(_judge_space(each) for each in spaces)


def _judge_space(space: Space) -> Finding:
    if space.fault is not None or space.free_bytes is None:
        return unknown("disk", f"{space.place}: {space.fault or 'reports no space'}")
    text = f"{space.place}: {show_bytes(space.free_bytes)} free"
    if space.whole_bytes:
        text += f" of {show_bytes(space.whole_bytes)}"
    if space.writable is False:
        return fail("disk", f"{text}, takes no writes")
    if space.free_bytes < form.FREE_FAIL_BYTES:
        return fail("disk", text)
    scarce = bool(space.whole_bytes) and (
        space.free_bytes < form.FREE_WARN_SHARE * (space.whole_bytes or 0)
    )
    if scarce or space.free_bytes < form.FREE_WARN_BYTES:
        return warn("disk", text)
    return ok("disk", text)


def judge_files(found: Sequence[Files]) -> Finding:
    return worst(_judge_limit(each) for each in found)


def _judge_limit(files: Files) -> Finding:
    if files.files_max is None:
        return ok("files", f"{files.process}: no limit")
    text = f"{files.process} may open {files.files_max:,} files"
    used = 0.0
    if files.files_open is not None:
        text += f", {files.files_open:,} are open"
        used = files.files_open / max(1, files.files_max)
    if files.files_max < form.FILES_FAIL or used >= form.FILES_USED_FAIL:
        return fail("files", text)
    if files.files_max < form.FILES_WARN or used >= form.FILES_USED_WARN:
        return warn("files", text)
    return ok("files", text)


def judge_sessions(fault: str | None, sessions: Sequence[Session]) -> Finding:
    """Judge the answer of ZooKeeper here, and the sessions of this command and of gateways."""
    if fault is not None:
        return fail("zookeeper", fault, "start ZooKeeper, or run doctor where it can be reached")
    if not sessions:
        return ok("zookeeper", "not used: the metadata are in the process of the gateway")
    return worst(_judge_session(each) for each in sessions)


def _judge_session(session: Session) -> Finding:
    wanted, granted = session.wanted_ms / 1000, session.granted_ms / 1000
    text = f"{session.process}: granted {seconds(granted)}"
    if session.granted_ms == session.wanted_ms:
        return ok("zookeeper", text)
    text += f" instead of {seconds(wanted)}"
    if session.granted_ms * 2 < session.wanted_ms:
        return fail("zookeeper", text)
    return warn("zookeeper", text)


def judge_versions(releases: Sequence[Release], levels: Sequence[Level]) -> Finding:
    known = [each for each in releases if each.release]
    silent = [each.process for each in releases if not each.release]
    found = [_judge_releases(known)] if known else []
    behind = [
        f"{each.feature} is {each.finalized}, and {each.supported} is supported"
        for each in levels
        if each.finalized < each.supported
    ]
    if behind:
        fix = "once all processes are of the new release, run `gateway feature upgrade`"
        found.append(warn("versions", listed(behind), fix))
    if silent:
        found.append(unknown("versions", f"{listed(silent)} report no release"))
    return worst(found) if found else unknown("versions", "no process reports its release")


def _judge_releases(known: Sequence[Release]) -> Finding:
    by_release: dict[str, list[str]] = {}
    for each in known:
        by_release.setdefault(str(each.release), []).append(each.process)
    if len(by_release) == 1:
        return ok("versions", f"all processes are of release {next(iter(by_release))}")
    text = "; ".join(f"{name}: {listed(each)}" for name, each in sorted(by_release.items()))
    series = {_series(name) for name in by_release}
    return warn("versions", text) if len(series) == 1 else fail("versions", text)


def _series(release: str) -> tuple[str, ...]:
    """Return the numbers up to the first that is not 0: releases that share them work together."""
    numbers: list[str] = []
    for number in release.split("."):
        numbers.append(number)
        if number != "0":
            break
    return tuple(numbers)


def judge_leaders(whole: int, without: Sequence[NoLeader]) -> Finding:
    if without:
        names = [f"{_partition(each)} ({each.reason})" for each in without]
        return fail("leaders", f"{len(without):,} of {whole:,} have no leader: {listed(names)}")
    return ok("leaders", f"{counted(whole, 'partition')}, each with a leader")


def _partition(each: NoLeader) -> str:
    return each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"


def judge_lag(groups: int, lags: Collection[Lag], left_out: int = 0) -> Finding:
    """Judge the lag of each group by its partition that is furthest behind."""
    if not groups:
        return ok("lag", "there are no groups")
    furthest: dict[str, Lag] = {}
    for each in lags:
        before = furthest.get(each.group)
        if before is None or (each.behind_s or 0) > (before.behind_s or 0):
            furthest[each.group] = each
    found = [_judge_group(each) for each in furthest.values() if each.behind_s is not None]
    if any(each.behind_s is None for each in lags):
        found.append(unknown("lag", "some leaders did not return the times of records"))
    if left_out:
        found.append(unknown("lag", f"{left_out:,} more partitions were not examined"))
    bad = [each for each in found if each.state is not form.State.ok]
    if not bad:
        return ok("lag", f"{counted(groups, 'group')}, none more than 60 s behind")
    state = worst(bad).state
    same = [each for each in bad if each.state is state]
    return same[0]._replace(finding=listed([each.finding for each in same]))


def _judge_group(lag: Lag) -> Finding:
    behind_s = lag.behind_s or 0.0
    text = f"group {lag.group} is {seconds(behind_s)} behind in {lag.topic}-{lag.partition}"
    text += f" ({counted(lag.records, 'record')})"
    if not lag.members:
        fix = "start its consumers, or delete the group (`gateway group delete`)"
        text += ", without members"
        return warn("lag", text, fix) if behind_s >= form.LAG_FAIL_S else ok("lag", text)
    if behind_s >= form.LAG_FAIL_S:
        return fail("lag", text)
    return warn("lag", text) if behind_s >= form.LAG_WARN_S else ok("lag", text)
