"""Drives the pure group by hand: waiters are strings, `Persist` comes true when it is told to."""

from __future__ import annotations

from itertools import count

from gateway.core.group import Group
from gateway.core.group_members import (
    AnswerJoin,
    GroupSettings,
    Joining,
    Leaving,
    Persist,
    Syncing,
)

RANGE = (("range", b"r"),)


class Driver:
    """One group, its time, and every answer by waiter. `holding`: stored memberships wait."""

    def __init__(self, holding=False, **settings):
        self.group = Group(GroupSettings(**settings))
        self.now_ms = 0
        self.holding = holding
        self.held = []
        self.stored = []
        self.joined = {}
        self.synced = {}
        self._ids = count(1)
        self._waiters = count(1)

    def run(self, effects):
        for effect in effects:
            if isinstance(effect, Persist):
                self.stored.append(effect.membership)
                if self.holding:
                    self.held.append(effect)
                else:
                    self.run(effect.then(self.now_ms))
                continue
            answers, answer = (
                (self.joined, effect.joined)
                if isinstance(effect, AnswerJoin)
                else (self.synced, effect.synced)
            )
            assert effect.waiter not in answers, f"{effect.waiter} answered twice"
            answers[effect.waiter] = answer

    def release(self):
        """The oldest held membership is durable."""
        self.run(self.held.pop(0).then(self.now_ms))

    def refuse(self):
        """The oldest held membership is too large to be stored."""
        self.run(self.held.pop(0).refuse(self.now_ms))

    def join(self, member_id="", instance=None, protocols=RANGE, **more):
        """The waiter of this join; its answer comes to `joined`."""
        waiter = f"join {next(self._waiters)}"
        more = {
            "protocol_type": "consumer",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "id_required": False,
        } | more
        joining = Joining(
            member_id=member_id,
            instance_id=instance,
            protocols=protocols,
            fresh_id=str(next(self._ids)),
            **more,
        )
        self.run(self.group.join(joining, waiter, self.now_ms))
        return waiter

    def sync(self, member_id, generation=None, assignments=(), **more):
        waiter = f"sync {next(self._waiters)}"
        generation = self.group.generation if generation is None else generation
        syncing = Syncing(member_id, generation, assignments=tuple(assignments), **more)
        self.run(self.group.sync(syncing, waiter, self.now_ms))
        return waiter

    def heartbeat(self, member_id, generation=None, instance=None):
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, generation, instance, self.now_ms).name

    def leave(self, *leavings):
        pairs = tuple(Leaving(*each) for each in leavings)
        errors, effects = self.group.leave(pairs, self.now_ms)
        self.run(effects)
        return [error.name for error in errors]

    def commit(self, member_id="", generation=-1, instance=None):
        return self.group.check_commit(member_id, generation, instance, self.now_ms).name

    def wait(self, wait_ms):
        """Time passes, with every deadline kept in its order."""
        end_ms = self.now_ms + wait_ms
        while (at_ms := self.group.deadline_ms) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.run(self.group.tick(self.now_ms))
        self.now_ms = end_ms

    def wait_for(self, *waiters):
        """Time passes until these have their answers; their answers."""
        while not self.joined.keys() >= set(waiters):
            assert self.group.deadline_ms is not None, "nobody will ever answer"
            self.wait(max(self.group.deadline_ms - self.now_ms, 0))
        return [self.joined[waiter] for waiter in waiters]

    def stable(self, *instances):
        """A stable group of as many members; their ids, the leader first."""
        waiters = [self.join(instance=instance) for instance in instances]
        ids = [joined.member_id for joined in self.wait_for(*waiters)]
        for member_id in reversed(ids):  # the leader last
            self.sync(member_id, assignments=[(each, each.encode()) for each in ids])
        assert self.group.state.value == "Stable"
        return ids
