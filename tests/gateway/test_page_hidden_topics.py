"""Goal: the history of a group on the page shows no topic that its user may not describe.

Method: a history of three topics, of which one is deleted, and ACLs for one of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from gateway.access import Operation, ResourceType
from gateway.admin.group_history import Past
from gateway.core.acl_rules import AclRules
from gateway.core.acls import Acl, Pattern, PatternType, Permission
from gateway.http.pages import Asked
from gateway.http.views import group_history
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import OffsetChange, SubscriptionHistory

ORDERS, HIDDEN, DELETED = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = {ORDERS: "orders", HIDDEN: "hidden"}


def place(topic):
    return TopicIdPartition(topic, 0)


@pytest.fixture
def site(monkeypatch):
    at = CommittedOffset(offset=5)
    places = [place(each) for each in (ORDERS, HIDDEN, DELETED)]
    changes = [OffsetChange(1, each, at) for each in places] + [OffsetChange(2, None, note=b"n")]
    history = SubscriptionHistory(0, dict.fromkeys(places, at), b"", changes)

    async def read_past(storage, group):
        return Past(group, history, NAMES.get)

    async def storage():
        return None

    monkeypatch.setattr(group_history, "read_past", read_past)
    pattern = Pattern(ResourceType.TOPIC, "orders", PatternType.LITERAL)
    rules = AclRules([Acl(pattern, "User:alice", "*", Operation.READ, Permission.ALLOW)])
    return SimpleNamespace(ctx=SimpleNamespace(authorizer=rules), storage=storage)


async def past_of(site, principal):
    asked = Asked({"group": "g"}, {}, principal, "10.0.0.1")
    return (await group_history.past_of(site, asked)).history


async def test_a_history_lacks_topics_that_its_user_may_not_describe(site):
    found = await past_of(site, "User:alice")
    assert [each.key for each in found.changes] == [place(ORDERS), place(DELETED), None]
    assert list(found.offsets) == [place(ORDERS), place(DELETED)]
    assert [each.key for each in (await past_of(site, "User:bob")).changes] == [
        place(DELETED),
        None,
    ]


async def test_without_an_authorizer_a_history_is_whole(site):
    site.ctx.authorizer = None
    found = await past_of(site, "User:ANONYMOUS")
    assert (len(found.changes), len(found.offsets)) == (4, 3)
