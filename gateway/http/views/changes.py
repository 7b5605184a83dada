"""Changes of topics and groups, by the functions of the commands. Each asks for the name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.admin import configs, topics
from gateway.admin.client import AdminError
from gateway.admin.group_history import positions_then
from gateway.admin.group_seek import Scope, execute, plan, plan_restore
from gateway.admin.group_seek import rows as step_rows
from gateway.admin.groups import delete_group
from gateway.admin.notation import read_target, read_topics
from gateway.http.change_form import confirmed, field, pairs_of, ticked
from gateway.http.pages import Asked, Json, Refused
from gateway.http.record_source import own_client
from gateway.http.views.group_history import past_of, read_at
from ledger.command_line import units

if TYPE_CHECKING:
    from gateway.http.site import Site

_SETTINGS_MAX: Final = 100


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def create_topic(asked: Asked, site: Site) -> Json:
    """Create a topic: `name`, `partitions`, `replication_factor`, and `settings`, one on a line."""
    name = field(asked, "name", str)
    confirmed(asked, name)
    partitions = field(asked, "partitions", units.whole(1, units.INT32_MAX), -1)
    copies = field(asked, "replication_factor", units.whole(1, 2**15 - 1), -1)
    given = field(asked, "settings", pairs_of, [])
    bare = next((key for key, value in given if value is None), None)
    if bare is not None or len(given) > _SETTINGS_MAX:
        raise Refused(400, "INVALID_REQUEST", f"settings: at most {_SETTINGS_MAX} of key=value")
    values = {key.strip(): (value or "").strip() for key, value in given}
    async with own_client(site, asked) as client:
        made = await topics.create_topic(client, name, partitions, copies, values)
    return {**made, "sentence": f"Created topic {name}."}


async def alter_topic(asked: Asked, site: Site) -> Json:
    """Set a setting of a topic to `value`, or `reset` it to its default."""
    topic = asked.path["topic"]
    confirmed(asked, topic)
    key = field(asked, "key", str)
    value = None if ticked(asked, "reset") else asked.form.get("value", "")
    async with own_client(site, asked) as client:
        done = await configs.change(client, configs.topic(topic), {key: value})
    (row,) = done.rows
    sentence = f"{key} of topic {topic} is {row['after']}; it was {row['before']}."
    return {**row, "remark": done.remark, "sentence": sentence}


async def delete_topic(asked: Asked, site: Site) -> Json:
    """Delete a topic with its records."""
    topic = asked.path["topic"]
    confirmed(asked, topic)
    async with own_client(site, asked) as client:
        await topics.delete_topic(client, topic)
    return {"topic": topic, "sentence": f"Deleted topic {topic}."}


async def seek_group(asked: Asked, site: Site) -> Json:
    """Move a group without members: `to` a position, of all partitions or of some `topics`.

    With `plan`, nothing is changed.
    """
    group = asked.path["group"]
    only_plan = ticked(asked, "plan")
    if not only_plan:
        confirmed(asked, group)
    target = field(asked, "to", lambda word: read_target(word, _now_ms()))
    scope = Scope(field(asked, "topics", lambda words: read_topics(words.split()), {}))
    async with own_client(site, asked) as client:
        steps = await plan(client, group, scope, target)
        if not only_plan:
            await execute(client, group, steps, _now_ms())
    moved = sum(step.changes for step in steps)
    does = "would move" if only_plan else "moved"
    return {
        "group": group,
        "executed": not only_plan,
        "offsets": step_rows(group, steps),
        "sentence": f"{does.capitalize()} {moved} of {len(steps)} offsets of group {group}.",
    }


async def restore_group(asked: Asked, site: Site) -> Json:
    """Move a group without members to the offsets that it had at the time `at`, in ms."""
    group = asked.path["group"]
    confirmed(asked, group)
    at_ms = read_at(field(asked, "at", str), 0)
    past = await past_of(site, asked)
    async with own_client(site, asked) as client:
        steps = await plan_restore(client, group, Scope(), positions_then(past, at_ms))
        await execute(client, group, steps, _now_ms())
    moved = sum(step.changes for step in steps)
    return {
        "group": group,
        "executed": True,
        "offsets": step_rows(group, steps),
        "sentence": f"Moved {moved} of {len(steps)} offsets of group {group}.",
    }


async def remove_group(asked: Asked, site: Site) -> Json:
    """Delete a group without members, with its offsets."""
    group = asked.path["group"]
    confirmed(asked, group)
    async with own_client(site, asked) as client:
        try:
            await delete_group(client, group)
        except AdminError as error:
            if error.code == "GROUP_ID_NOT_FOUND":
                raise Refused(404, error.code, str(error)) from error
            raise
    return {"group": group, "sentence": f"Deleted group {group}."}
