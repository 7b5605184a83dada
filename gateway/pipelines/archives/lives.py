"""The lives of a topic in an archive. Pure.

A topic that was deleted and recreated is another topic of the same name: its offsets begin again.
An archive keeps the first life under the topic's own name, and every later one as NAME@ID, where ID
is the topic id. No topic of Kafka has an `@` in its name. So the layout, the log and other tools
treat each life as a topic of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.pipelines.shared.errors import JobError

_MARK = "@"
_NAMED_MAX = 10  # topics that an error names


def life_name(topic: str, topic_id: str) -> str:
    """Return the name of a later life of the topic."""
    return f"{topic}{_MARK}{topic_id}"


def base_name(life: str) -> str:
    """Return the name that the topic has in Kafka."""
    return life.partition(_MARK)[0]


def find_life(archived: Mapping[str, str], topic: str, topic_id: str | None) -> str | None:
    """Return the name under which an archive with these topic ids continues the topic.

    Returns None if the archive holds only other lives of the topic. A topic without an id has no
    lives: old brokers assign no ids.
    """
    if topic_id is None or archived.get(topic, topic_id) == topic_id:
        return topic
    later = life_name(topic, topic_id)
    return later if later in archived else None


def select_life(
    archived: Iterable[str], topic_ids: Mapping[str, str], topic: str, topic_id: str = ""
) -> str:
    """Return the one of the `archived` names that holds this topic.

    `topic_id` selects one of several lives. So does a `topic` NAME@ID, also for the first life.
    Raises JobError if there is none, or if there are several and no id selects one.
    """
    base, _, named_id = topic.partition(_MARK)
    chosen_id = topic_id or named_id
    names = sorted(archived)
    lives = [each for each in names if base_name(each) == base]
    if chosen_id:
        lives = [
            each for each in lives if topic_ids.get(each, each.partition(_MARK)[2]) == chosen_id
        ]
    if not lives:
        chosen = f" with id {chosen_id}" if chosen_id else ""
        held = ", ".join(sorted({base_name(each) for each in names})[:_NAMED_MAX])
        more = f"; it holds {held}" if held else ": it is empty, or at another place"
        text = f"the archive has no records of topic {base!r}{chosen}{more}"
        raise JobError(text, "NOT_ARCHIVED")
    if len(lives) > 1:
        names = ", ".join(life_name(base, topic_ids.get(each, "?")) for each in lives)
        raise JobError(
            f"the archive holds {len(lives)} lives of topic {base!r}, which was recreated; select"
            f" one by its id: {names}",
            "SEVERAL_LIVES",
        )
    return lives[0]
