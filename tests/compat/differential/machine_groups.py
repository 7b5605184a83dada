"""Random classic groups: members that join and leave, heartbeats and commits, right and wrong.

A rebalance is one action, in an order that gives one result: a new member joins first and waits,
then all others join. Each member has a connection of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

from tests.compat.differential.script import NOT_YET, Answer, Topic
from tests.compat.differential.sequences import Compared, versions
from tests.compat.differential.steps import Taken

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP = 8, 9, 11, 12, 13
SYNC_GROUP, DESCRIBE_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 14, 15, 42, 47
MEMBERS_MAX = 3
SESSION_MS = 300_000  # longer than any sequence takes

places = st.integers(0, MEMBERS_MAX - 1)
wrong = st.sampled_from(("", "", "", "generation", "member"))


@dataclass(slots=True)
class Member:
    """One member; its connection has its name."""

    name: str
    member_id: Taken
    joined: Answer

    def ref(self, wrong: str = "") -> dict[str, Any]:
        """Return generation and member id, one of them perhaps wrong."""
        generation = self.joined.take("generation_id")
        return {
            "generation_id": 99 if wrong == "generation" else generation,
            "generation_id_or_member_epoch": 99 if wrong == "generation" else generation,
            "member_id": "nobody" if wrong == "member" else self.member_id,
        }


class Groups(Compared):
    """One group with up to three members, and commits of its offsets."""

    name: ClassVar[str] = "groups"
    key: ClassVar[int] = JOIN_GROUP

    def __init__(self) -> None:
        super().__init__()
        self._group = self.script.name("group")
        self._topic: Topic = self.script.topic("one", 2)
        # In the order in which they joined; the first one leads.
        self._members: list[Member] = []
        self._names = 0

    @initialize()
    def begin(self) -> None:
        self.script.coordinator(self._group)

    # -- rebalances -------------------------------------------------------------------------------

    def _join_fields(self, member_id: Any) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": SESSION_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"meta"}],
            "member_id": member_id,
        }

    def _rejoin(self, version: int, sent: list[tuple[Member, Answer]]) -> None:
        """Let all members join whose request was not sent, and read all answers."""
        waiting = [each for each in self._members if each not in [one for one, _ in sent]]
        for member in waiting:
            fields = self._join_fields(member.member_id)
            answer = self.script.send_other(JOIN_GROUP, version, on=member.name, **fields)
            sent.append((member, answer))
        for member, answer in sent:
            member.joined = self.script.receive(answer)
        self._sync_all()

    def _sync_all(self) -> None:
        for number, member in enumerate(self._members):
            shares = [
                {"member_id": each.member_id, "assignment": each.name.encode()}
                for each in self._members
            ]
            self._sync(member, 5, "", [] if number else shares)

    def _sync(self, member: Member, version: int, wrong: str, shares: list[Any]) -> None:
        fields = {"protocol_type": "consumer", "protocol_name": "range", "assignments": shares}
        ref = {"group_id": self._group, "group_instance_id": None, **member.ref(wrong)}
        self.script.other(SYNC_GROUP, version, on=member.name, **ref, **fields)

    def _until_rebalancing(self) -> None:
        """Wait until a rebalance has begun, which a heartbeat of the leader shows."""
        leader = self._members[0]
        ref = {"group_id": self._group, "group_instance_id": None, **leader.ref()}
        self.script.prepare(HEARTBEAT, 4, on=leader.name, again=("none", *NOT_YET), **ref)

    @rule(version=versions(4, 9))
    def add_member(self, version: int) -> None:
        if len(self._members) == MEMBERS_MAX:
            return
        self._names += 1
        name = f"member-{self._names}"
        asked = self.script.other(JOIN_GROUP, version, on=name, **self._join_fields(""))
        member_id = asked.take("member_id")
        fields = self._join_fields(member_id)
        answer = self.script.send_other(JOIN_GROUP, version, on=name, **fields)
        if self._members:
            self._until_rebalancing()
        new = Member(name, member_id, answer)
        self._members.append(new)
        self._rejoin(version, [(new, answer)])

    @rule(version=versions(0, 9))
    def leader_joins_again(self, version: int) -> None:
        """Let the leader join again, which begins a rebalance."""
        if not self._members:
            return
        leader = self._members[0]
        fields = self._join_fields(leader.member_id)
        answer = self.script.send_other(JOIN_GROUP, version, on=leader.name, **fields)
        if len(self._members) > 1:
            other = self._members[1]
            ref = {"group_id": self._group, "group_instance_id": None, **other.ref()}
            self.script.prepare(HEARTBEAT, 4, on=other.name, again=("none", *NOT_YET), **ref)
        self._rejoin(version, [(leader, answer)])

    @rule(place=places, version=versions(0, 5))
    def leave(self, place: int, version: int) -> None:
        """Let a member that does not lead leave, or the last one."""
        if place >= len(self._members) or (place == 0 and len(self._members) > 1):
            return
        member = self._members.pop(place)
        ref = {"member_id": member.member_id}
        row = {**ref, "group_instance_id": None, "reason": None}
        self.script.other(LEAVE_GROUP, version, group_id=self._group, **ref, members=[row])
        if self._members:
            self._rejoin(9, [])

    # -- requests of members ----------------------------------------------------------------------

    @rule(place=places, wrong=wrong, version=versions(0, 4))
    def heartbeat(self, place: int, wrong: str, version: int) -> None:
        if place < len(self._members):
            member = self._members[place]
            ref = {"group_id": self._group, "group_instance_id": None, **member.ref(wrong)}
            self.script.other(HEARTBEAT, version, on=member.name, **ref)

    @rule(place=places, wrong=wrong, version=versions(0, 5))
    def sync_again(self, place: int, wrong: str, version: int) -> None:
        if place < len(self._members):
            self._sync(self._members[place], version, wrong, [])

    @rule(
        place=places,
        wrong=wrong,
        partition=st.integers(-1, 2),
        offset=st.integers(-1, 9),
        version=versions(2, 10),
    )
    def commit(self, place: int, wrong: str, partition: int, offset: int, version: int) -> None:
        ref = {"generation_id_or_member_epoch": -1, "member_id": ""}
        if place < len(self._members):
            ref = self._members[place].ref(wrong)
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": f"at {offset}",
        }
        topics = [{**self._topic.ref, "partitions": [row]}]
        fields = {"group_instance_id": None, "retention_time": -1, **ref}
        self.script.other(OFFSET_COMMIT, version, group_id=self._group, topics=topics, **fields)

    # -- requests of others -----------------------------------------------------------------------

    @rule(everything=st.booleans(), stable=st.booleans(), version=versions(2, 10))
    def fetch_offsets(self, everything: bool, stable: bool, version: int) -> None:
        rows = [{**self._topic.ref, "partition_indexes": [0, 1]}]
        topics = None if everything else rows
        group = {"group_id": self._group, "member_id": None, "member_epoch": -1, "topics": topics}
        fields = {"groups": [group], "group_id": self._group, "topics": topics}
        self.script.other(OFFSET_FETCH, version, require_stable=stable, **fields)

    @rule(version=versions(0, 6))
    def describe(self, version: int) -> None:
        fields = {"groups": [self._group], "include_authorized_operations": False}
        self.script.other(DESCRIBE_GROUPS, version, **fields)

    @rule(version=versions(0, 2))
    def delete(self, version: int) -> None:
        self.script.other(DELETE_GROUPS, version, groups_names=[self._group])

    @rule(partition=st.integers(0, 2))
    def delete_offset(self, partition: int) -> None:
        rows = [{"partition_index": partition}]
        topics = [{"name": self._topic.name, "partitions": rows}]
        self.script.other(OFFSET_DELETE, 0, group_id=self._group, topics=topics)
