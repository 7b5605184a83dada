"""The first page: the health of the cluster in one sentence, and what is wrong first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.core.cluster_health import FAIL, OK, Check, judge
from gateway.core.figures import total
from gateway.figures.parts import mirror_of
from gateway.figures.slices import page_slices
from gateway.http.views.groups import group_row
from gateway.http.views.health_facts import health_facts
from gateway.http.views.listing import silent_rows
from gateway.http.views.topics import topic_row

if TYPE_CHECKING:
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

_BUSIEST: Final = 5
_BEHIND: Final = 5
_SHORT_MAX: Final = 300  # characters of a name that is drawn on the loop


async def overview(asked: Asked, site: Site) -> Json:
    """Return the checks of the cluster, failed ones first, and what is busiest."""
    found = await health_facts(site).get()
    mirror = await mirror_of(site.ctx).fresh()
    slices = page_slices()
    checks = judge(found.facts)
    await slices.pause()
    failed = [each for each in checks if each.result == FAIL]
    others = [each for each in checks if each.result not in (FAIL, OK)]
    passed = [each for each in checks if each.result == OK]
    busiest = await mirror.topics.page("rate", None, _BUSIEST)
    behind = await mirror.groups.page("lag", None, _BEHIND)
    await slices.pause()
    members = mirror.members()
    return {
        "healthy": not failed,
        "sentence": sentence(checks),
        "checks": [each._asdict() for each in (*failed, *others, *passed)],
        "topics": found.topics,
        "partitions": found.partitions,
        "groups": len(mirror.groups.rows),
        "gateways": len(members),
        "bookies": None if found.ledgers is None else len(found.ledgers.bookies),
        "ledgers_missing": found.missing,
        "led_partitions": total(each.partitions for each in members),
        "busiest_topics": [topic_row(each) for each in busiest.rows if each.records_per_s],
        "groups_behind": [group_row(each) for each in behind.rows if each.lag],
        "silent_gateways": silent_rows(mirror),
    }


def has_short_names(found: Json) -> bool:
    """Return whether all names are short: topics have short ones, groups up to 32,767 bytes."""
    return all(len(each["group"]) <= _SHORT_MAX for each in found["groups_behind"])


def sentence(checks: Sequence[Check]) -> str:
    """Return the health in one sentence, which names the first failure."""
    failed = [each for each in checks if each.result == FAIL]
    if failed:
        count = "1 check failed" if len(failed) == 1 else f"{len(failed)} checks failed"
        return f"{count}: {failed[0].finding}."
    unknown = [each for each in checks if each.result != OK]
    if unknown:
        return f"No check failed, and {len(unknown)} could not be made: {unknown[0].finding}."
    return "Every check is ok."
