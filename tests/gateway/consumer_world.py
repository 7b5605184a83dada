"""A coordinator with log segments on virtual time, asked in the bytes of the consumer protocol."""

from __future__ import annotations

from datetime import timedelta

from tests.gateway.group_world import World
from tests.subscriptions.log_world import LogWorld

HEARTBEAT, DESCRIBE, COMMIT, FETCH = 68, 69, 8, 9


class ConsumerWorld(World):
    """One gateway over simulated bookies. Topics `t` (4 partitions) and `u` (1)."""

    def __init__(self, *, logs=None, **limits):
        self.logs = LogWorld() if logs is None else logs
        super().__init__(tree=self.logs.tree, **limits)
        self.process = self.logs.process()
        self.store = self.process.store()

    def next(self):
        """Kill this gateway, and return the one that takes its groups over."""
        self.process.kill()
        self.metadata.closed = True
        loaded_groups = self.groups._loaded_groups
        loaded_groups._session_timer.stop()
        loaded_groups._idle_timer.stop()
        self.groups._background.cancel()
        return ConsumerWorld(logs=self.logs)

    async def beat(self, member, epoch=0, group="g", version=1, **fields):
        """Send one heartbeat. A join has all that a first one needs."""
        body = {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": timedelta(milliseconds=60_000 if epoch == 0 else -1),
            "subscribed_topic_names": ["t"] if epoch == 0 else None,
            "server_assignor": None,
            "topic_partitions": [] if epoch == 0 else None,
        }
        if version >= 1:
            body["subscribed_topic_regex"] = None
        return await self.ask(HEARTBEAT, version, body | fields)

    async def described(self, group="g", **fields):
        body = {"group_ids": [group], "include_authorized_operations": False} | fields
        return (await self.ask(DESCRIBE, 1, body)).groups[0]

    def topic_id(self, name="t"):
        return self.catalog.by_name(name).topic_id

    def owned(self, *partitions, topic="t"):
        """Return the partitions of a topic as a member reports them."""
        return [{"topic_id": self.topic_id(topic), "partitions": list(partitions)}]

    async def commit_at(self, member, epoch, offset, partition=0, version=9, group="g"):
        """Commit one offset as a member. Returns the name of the code."""
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": epoch,
            "member_id": member,
            "group_instance_id": None,
            "topics": [{"name": "t", "partitions": [row]}],
        }
        reply = await self.ask(COMMIT, version, body)
        return reply.topics[0].partitions[0].error_code.name

    async def fetched_by(self, member, epoch, group="g"):
        """Read all offsets as a member. Returns the name of the code."""
        asked = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": None}
        reply = await self.ask(FETCH, 9, {"groups": [asked], "require_stable": False})
        return reply.groups[0].error_code.name


def partitions(reply):
    """Return the partitions of topic `t` in an answer, or None if it has no assignment."""
    if reply.assignment is None:
        return None
    return sorted(each for row in reply.assignment.topic_partitions for each in row.partitions)
