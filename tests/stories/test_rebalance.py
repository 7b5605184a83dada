"""Goal: one can read what consumer groups do. Method: stories, played on a whole coordinator in
virtual time; each `rebalance_*.txt` is one.
"""

import asyncio

import pytest

from gateway.core.group_members import Joining, Leaving, Syncing
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.group_world import World
from tests.stories.runner import names, play

SETTLED_S = 0.010


class Teller:
    """Members by name; what they are told is printed with the seconds since the story began."""

    def __init__(self, world):
        self.world = world
        self.ids = {}  # name -> member id
        self.generations = {}
        self.instances = {}
        self.lines = []
        self.tasks = set()
        self.fresh = 0

    async def execute(self, command):
        verb, *words = command.split()
        options = dict(word.split("=") for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        await getattr(self, f"do_{verb}")(*plain, **options)
        await asyncio.sleep(SETTLED_S)
        lines, self.lines = self.lines, []
        return lines

    def say(self, text):
        # `SETTLED_S` after each command is not part of the story
        self.lines.append(f"{asyncio.get_running_loop().time():6.1f} s  {text}")

    def name_of(self, member_id):
        return next((name for name, known in self.ids.items() if known == member_id), "?")

    def later(self, awaitable):
        task = asyncio.get_running_loop().create_task(awaitable)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def do_join(self, name, instance=None, protocols="range", session="10", asks="no"):
        """asks=yes: as a client before JoinGroup v4, which gets its id with the answer."""
        self.instances[name] = instance
        self.later(self._join(name, instance, protocols.split(","), int(session), asks == "no"))

    async def _join(self, name, instance, protocols, session_s, id_required):
        while True:
            self.fresh += 1
            joined = await self.world.groups.join(
                "g",
                Joining(
                    member_id=self.ids.get(name, ""),
                    protocol_type="consumer",
                    protocols=tuple((each, name.encode()) for each in protocols),
                    session_timeout_ms=session_s * 1000,
                    rebalance_timeout_ms=30_000,
                    fresh_id=str(self.fresh),
                    instance_id=instance,
                    client_id=name,
                    id_required=id_required,
                ),
            )
            if joined.error.name != "member_id_required":
                break
            self.ids[name] = joined.member_id
        if joined.error.name != "none":
            self.say(f"{name}: join refused, {joined.error.name}")
            if joined.error.name == "unknown_member_id":
                self.ids.pop(name, None)
            return
        self.ids[name], self.generations[name] = joined.member_id, joined.generation
        text = f"{name}: in generation {joined.generation}, protocol {joined.protocol}"
        if joined.members:
            everybody = " ".join(each.metadata.decode() for each in joined.members)
            text += f", leads {everybody}"
        self.say(text + (", assigns nothing" if joined.skip_assignment else ""))

    async def do_sync(self, name, **parts):
        assignments = tuple((self.ids[each], part.encode()) for each, part in parts.items())
        self.later(self._sync(name, assignments))

    async def _sync(self, name, assignments):
        syncing = Syncing(
            self.ids[name],
            self.generations[name],
            self.instances[name],
            assignments=assignments,
        )
        synced = await self.world.groups.sync("g", syncing)
        told = synced.assignment.decode() or "nothing"
        self.say(f"{name}: " + (told if synced.error.name == "none" else synced.error.name))

    async def do_heartbeat(self, *everybody):
        for name in everybody:
            code = await self.world.groups.heartbeat(
                "g", self.ids[name], self.generations[name], self.instances[name]
            )
            self.say(f"{name}: {code.name}")

    async def do_leave(self, name):
        (code,) = await self.world.groups.leave("g", (Leaving(self.ids.pop(name)),))
        self.say(f"{name}: {code.name}")

    async def do_forget(self, name):
        """The client's process has ended; the next one knows no member id."""
        del self.ids[name]

    async def do_commit(self, name, offset):
        position = CommittedOffset(offset=int(offset), commit_time_ms=self.world.clock.now_ms())
        code = await self.world.groups.commit(
            "g",
            self.ids[name],
            self.generations[name],
            self.instances[name],
            {self.world.key(): position},
        )
        self.say(f"{name}: {code.name}")

    async def do_committed(self):
        self.say(f"partition 0: {await self.world.committed('g')}")

    async def do_wait(self, seconds, alive=""):
        """`alive`: who sends heartbeats meanwhile, every 3 seconds, without a word."""
        for _ in range(int(seconds)):
            await asyncio.sleep(1 - (SETTLED_S if _ == 0 else 0))
            for name in alive.split(",") if alive else ():
                await self.world.groups.heartbeat(
                    "g", self.ids[name], self.generations[name], self.instances[name]
                )

    async def do_group(self):
        view = await self.world.groups.describe("g")
        names = " ".join(self.name_of(each.member_id) for each in view.members) or "nobody"
        self.say(f"{view.state.value}: {names}")

    async def do_crash(self):
        """The gateway ends without a word; another starts over what was durable."""
        for task in self.tasks:
            task.cancel()
        self.world = await self.world.crashed().__aenter__()


@pytest.mark.parametrize("story", names("rebalance_"))
async def test_story(story):
    async with World() as world:
        teller = Teller(world)
        await play(story, teller.execute)
        for task in teller.tasks:
            task.cancel()
        await teller.world.groups.stop()
