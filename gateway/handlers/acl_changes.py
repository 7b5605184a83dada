"""Describes, stores and deletes ACLs for their APIs. Loaded by gateways with an authorizer only.

Source: Kafka, AclApis, AclControlManager and DescribeAclsResponse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
    resources = Rows(request, "resources")
    for pattern, acls in grouped(stored.matching(_filter_of(request.body))).items():
        rows = Rows(request, "resources", "acls")
        for acl in acls:
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
    asked = [
        Created(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        async for each in with_pauses(request.body.creations, request)
    ]
    if any(each.means_any for each in asked):
        failed = Rows(request, "results")
        async for _ in with_pauses(asked, request):
            await failed.add(_FAILED)
        return failed
    found = [_checked(each) async for each in with_pauses(asked, request)]
    acls = [each for each in found if isinstance(each, Acl)]
    outcomes = await _create(acls, request, ctx, stored)
    results = Rows(request, "results")
    for each in found:
        if isinstance(each, Acl):
            await results.add(outcomes[each.pattern])
        else:
            await results.add(Reply(error_code=ErrorCode.invalid_request, error_message=str(each)))
    return results


def _checked(asked: Created) -> Acl | AclRefused:
    try:
        return asked.checked()
    except AclRefused as fault:
        return fault


async def _create(
    acls: list[Acl], request: Request, ctx: Context, stored: StoredAcls
) -> dict[Pattern, Reply]:
    """Store ACLs, those of one pattern at a time. Returns the outcome of each pattern."""
    patterns = grouped(acls)
    if len(stored.new(acls)) > CHANGED_MAX:
        return dict.fromkeys(patterns, _TOO_MANY_NEW)
    outcomes: dict[Pattern, Reply] = {}
    end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    waiting = iter(patterns.items())
    while some := dict(islice(waiting, AT_ONCE)):
        if ctx.clock.monotonic_s() >= end_s:
            outcomes.update(dict.fromkeys(some, not_reached(Reply())))
            continue
        added = await asyncio.gather(*(_add(stored, *each) for each in some.items()))
        outcomes.update(zip(some, added, strict=True))
    for acl in acls:
        outcome = outcomes[acl.pattern]["error_code"].name.upper()
        note_change(request, "CREATE", f"ACL:{acl}", outcome)
    return outcomes


async def _add(stored: StoredAcls, pattern: Pattern, acls: list[Acl]) -> Reply:
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
        answers = await _matches(filters, await stored.all_now(), ctx)
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
    filters: Sequence[AclFilter], acls: Sequence[Acl], ctx: Context
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
            answer = [acl for acl in acls if each.matches(acl)]
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
