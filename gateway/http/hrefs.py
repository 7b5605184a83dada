"""The paths of pages. The guard keeps an encoded slash in a name, so each name is one part."""

from __future__ import annotations

from urllib.parse import quote


def url_part(name: str) -> str:
    """Return a name as one part of a path, whatever it contains."""
    return quote(name, safe="")


def topic_href(topic: str) -> str:
    """Return the path of the page of a topic."""
    return f"/topics/{url_part(topic)}"


def record_href(topic: str, partition: int, offset: int) -> str:
    """Return the path of the life of a record."""
    return f"{topic_href(topic)}/{partition}/{offset}"


def group_href(group: str) -> str:
    """Return the path of the page of a group."""
    return f"/groups/{url_part(group)}"
