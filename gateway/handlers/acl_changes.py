"""Describes, stores and deletes ACLs for their APIs. Loaded by gateways with an authorizer only.

Source: Kafka, AclApis, AclControlManager and DescribeAclsResponse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.core.acl_rules import grouped
from gateway.core.acls import (
    CHANGED_MAX,
    CODE_OF,
    Acl,
    AclFilter,
    AclRefused,
    Created,
    Pattern,
)
from gateway.handlers.api import Context, Reply, Request
from gateway.handlers.changes import note_change
from gateway.handlers.many_rows import ANSWER_S_MAX, Rows, with_pauses
from gateway.handlers.topic_replies import AT_ONCE, AdminRefusal, error_fields, not_reached
from gateway.settings.stored_acls import StoredAcls
from gateway.settings.stored_rows import TableFull
from ledger.errors import LedgerError

_TOO_MANY_NEW = Reply(
    error_code=ErrorCode.policy_violation,
    error_message="Unable to perform excessively large batch operation.",
)
_TOO_MANY = Reply(
    error_code=ErrorCode.unknown_server_error,
    error_message=f"Cannot remove more than {CHANGED_MAX} acls in a single delete operation.",
)
_FAILED = Reply(error_code=ErrorCode.unknown_server_error, error_message=None)
_STORED = Reply(error_code=ErrorCode.none, error_message="")
_DELETED = Reply(error_code=ErrorCode.none, error_message=None)
_ROWS_MAX = 100_000  # ACLs in one answer, about; further filters get a retriable error


async def describe(request: Request, stored: StoredAcls) -> Reply:
    """Return the ACLs that the filter of a DescribeAcls matches."""
    wanted, found = _filter_of(request.body), dict[Pattern, list[Acl]]()
    async for acl in with_pauses(stored.all(), request):
        if wanted.matches(acl):
            found.setdefault(acl.pattern, []).append(acl)
    resources = Rows(request, "resources")
    for pattern in sorted(found):
        rows = Rows(request, "resources", "acls")
        for acl in sorted(found[pattern]):
            await rows.add(_entry_of(acl))
        await resources.add(
            Reply(
                resource_type=CODE_OF[pattern.kind],
                resource_name=pattern.name,
                pattern_type=CODE_OF[pattern.type],
                acls=rows.result(),
            )
        )
    return Reply(error_code=ErrorCode.none, error_message="", resources=resources.result())


async def create(request: Request, ctx: Context, stored: StoredAcls) -> Rows:
    """Store the ACLs of a CreateAcls, and return their rows."""
    creations = request.body.creations
    fails = False
    async for each in with_pauses(creations, request):
        fails = fails or _created(each).means_any
    found: list[Acl | str] = []  # each ACL, or why it is refused
    if not fails:
        async for each in with_pauses(creations, request):
            found.append(_checked(_created(each)))
    results = Rows(request, "results")
    if fails:
        async for _ in with_pauses(creations, request):
            await results.add(_FAILED)
        return results
    outcomes = await _create(found, request, ctx, stored)
    for each in found:
        if isinstance(each, Acl):
            await results.add(outcomes.get(each.pattern, _TOO_MANY_NEW))
        else:
            await results.add(Reply(error_code=ErrorCode.invalid_request, error_message=each))
    return results


def _created(asked: Any) -> Created:
    return Created(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        asked.host,
        asked.operation,
        asked.permission_type,
    )


def _checked(asked: Created) -> Acl | str:
    """Return an ACL, or the text of its refusal: an exception would keep its frames in memory."""
    try:
        return asked.checked()
    except AclRefused as fault:
        return str(fault)


async def _create(
    found: Sequence[Acl | str], request: Request, ctx: Context, stored: StoredAcls
) -> dict[Pattern, Reply]:
    """Store ACLs, those of one pattern at a time. Returns the outcome of each pattern.

    Returns none if there are too many new ACLs: then none is stored. An ACL that a request has
    more than once is stored once.
    """
    patterns: dict[Pattern, dict[Acl, None]] = {}
    new: set[Acl] = set()
    async for acl in with_pauses(found, request):
        if not isinstance(acl, Acl):
            continue
        patterns.setdefault(acl.pattern, {})[acl] = None
        if not stored.has(acl):
            new.add(acl)
        if len(new) > CHANGED_MAX:
            return {}
    outcomes: dict[Pattern, Reply] = {}
    end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    waiting = iter(patterns.items())
    while some := dict(islice(waiting, AT_ONCE)):
        if ctx.clock.monotonic_s() >= end_s:
            outcomes.update(dict.fromkeys(some, not_reached(Reply())))
            continue
        added = await asyncio.gather(*(_add(stored, *each) for each in some.items()))
        outcomes.update(zip(some, added, strict=True))
    for pattern, acls in patterns.items():
        outcome = outcomes[pattern]["error_code"].name.upper()
        async for acl in with_pauses(acls, request):
            note_change(request, "CREATE", f"ACL:{acl}", outcome)
    return outcomes


async def _add(stored: StoredAcls, pattern: Pattern, acls: Iterable[Acl]) -> Reply:
    try:
        await stored.add(pattern, acls)
    except TableFull as fault:
        return error_fields(AdminRefusal(ErrorCode.policy_violation, str(fault)))
    except LedgerError as error:
        return error_fields(error)
    return _STORED


async def delete(request: Request, ctx: Context, stored: StoredAcls) -> Rows:
    """Delete the ACLs that the filters of a DeleteAcls match, and return the filters' rows."""
    filters: list[AclFilter] = []
    async for each in with_pauses(request.body.filters, request):
        filters.append(_filter_of(each))
    try:
        answers = await _matches(filters, await stored.all_now(), request, ctx)
    except LedgerError as error:
        answers = dict.fromkeys(filters, error_fields(error))
    gone = {acl for each in answers.values() if isinstance(each, list) for acl in each}
    outcomes = await _remove(sorted(gone), request, stored)
    results = Rows(request, "filter_results")
    for each in filters:
        answer = answers[each]
        if isinstance(answer, list):
            await _add_matches(answer, outcomes, results, request)
        else:
            await results.add(Reply(answer, matching_acls=[]))
    return results


async def _matches(
    filters: Sequence[AclFilter], acls: Sequence[Acl], request: Request, ctx: Context
) -> dict[AclFilter, list[Acl] | Reply]:
    """Return the ACLs that each filter matches, or why none of them is deleted."""
    found: dict[AclFilter, list[Acl] | Reply] = {}
    end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    gone: set[Acl] = set()
    rows = 0  # of the answers so far
    for each in filters:
        answer = found.get(each)
        if answer is None:
            await asyncio.sleep(0)  # each filter looks at all ACLs
            answer = _fault(each)
        if answer is None and (ctx.clock.monotonic_s() >= end_s or rows > _ROWS_MAX):
            answer = not_reached(Reply())
        if answer is None:
            answer = [acl async for acl in with_pauses(acls, request) if each.matches(acl)]
            if len(gone.union(answer)) > CHANGED_MAX:
                answer = _TOO_MANY
        if isinstance(answer, list):
            gone.update(answer)
            rows += len(answer)
        found[each] = answer
    return found


def _fault(wanted: AclFilter) -> Reply | None:
    try:
        wanted.check()
    except AclRefused as fault:
        return Reply(error_code=ErrorCode.invalid_request, error_message=str(fault))
    return None


async def _remove(
    acls: Sequence[Acl], request: Request, stored: StoredAcls
) -> Mapping[Pattern, Reply]:
    """Remove ACLs, those of one pattern at a time. Returns the outcome of each pattern."""
    outcomes: dict[Pattern, Reply] = {}
    for pattern, some in grouped(acls).items():
        try:
            await stored.remove(pattern, some)
            outcomes[pattern] = _DELETED
        except LedgerError as error:
            outcomes[pattern] = error_fields(error)
        for acl in some:
            outcome = outcomes[pattern]["error_code"].name.upper()
            note_change(request, "DELETE", f"ACL:{acl}", outcome)
    return outcomes


async def _add_matches(
    acls: Sequence[Acl], outcomes: Mapping[Pattern, Reply], results: Rows, request: Request
) -> None:
    """Add the answer of a filter: the ACLs that it matched."""
    rows = Rows(request, "filter_results", "matching_acls")
    for acl in acls:
        await rows.add(
            Reply(
                outcomes[acl.pattern],
                resource_type=CODE_OF[acl.pattern.kind],
                resource_name=acl.pattern.name,
                pattern_type=CODE_OF[acl.pattern.type],
                **_entry_of(acl),
            )
        )
    await results.add(
        Reply(error_code=ErrorCode.none, error_message=None, matching_acls=rows.result())
    )


def _filter_of(asked: Any) -> AclFilter:
    """Return a filter of a request."""
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _entry_of(acl: Acl) -> Reply:
    """Return the fields of an ACL besides its pattern."""
    return Reply(
        principal=acl.principal,
        host=acl.host,
        operation=CODE_OF[acl.operation],
        permission_type=CODE_OF[acl.permission],
    )
