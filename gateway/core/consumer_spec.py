"""What an assignor sees of a group of the consumer protocol. Pure."""

from __future__ import annotations

from uuid import UUID

from gateway.core.consumer_assignors import AssignmentSpec, MemberSpec
from gateway.core.consumer_members import TopicView
from gateway.core.consumer_roster import ConsumerRoster
from gateway.core.java_map import in_map_order


def spec_of(roster: ConsumerRoster, topics: TopicView) -> AssignmentSpec:
    """Return the members of a group, with those of their topics that exist."""
    homogeneous = roster.is_homogeneous
    counts: dict[UUID, int] = {}
    ids: dict[frozenset[str], frozenset[UUID]] = {}
    members: dict[str, MemberSpec] = {}
    for name, member in roster.members.items():
        names = roster.subscribed(member)
        if names not in ids:
            order = in_map_order(names) if homogeneous else names
            known = [topics.by_name(each) for each in order]
            found = {each.topic_id: each.partitions for each in known if each is not None}
            counts.update(found)
            ids[names] = frozenset(found)
        target = roster.targets.get(name, {})
        members[name] = MemberSpec(ids[names], target, member.instance_id)
    return AssignmentSpec(members, counts, homogeneous)
