"""The pages of figures: the cluster, its topics and groups, events, and the queries of Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.access import Operation
from gateway.http.pages import Action, Asked, Page, Stream, on_cluster, on_group, on_topic
from gateway.http.views import cluster, events, group, groups, overview, spark, topic, topics


def _always(command: str) -> Callable[[Asked], str]:
    return lambda asked: command


PAGES: Final[tuple[Page, ...]] = (
    Page(
        path="/",
        name="overview",
        title="Overview",
        needs=on_cluster,
        view=overview.overview,
        command=_always("gateway cluster health"),
        in_menu=True,
        is_small=overview.has_short_names,
    ),
    Page(
        path="/topics",
        name="topics",
        title="Topics",
        needs=on_cluster,
        view=topics.topics,
        command=topics.command,
        in_menu=True,
        is_small=topics.has_short_names,
    ),
    Page(
        path="/topics/{topic}",
        name="topic",
        title="Topic",
        needs=on_topic(Operation.DESCRIBE),
        view=topic.topic,
        command=topic.command,
    ),
    Page(
        path="/groups",
        name="groups",
        title="Groups",
        needs=on_cluster,
        view=groups.groups,
        command=groups.command,
        in_menu=True,
    ),
    Page(
        path="/groups/{group}",
        name="group",
        title="Group",
        needs=on_group(Operation.DESCRIBE),
        view=group.group,
        command=group.command,
    ),
    Page(
        path="/cluster",
        name="cluster",
        title="Cluster",
        needs=on_cluster,
        view=cluster.cluster,
        command=cluster.command,
        in_menu=True,
    ),
    Page(
        path="/events",
        name="events",
        title="Events",
        needs=on_cluster,
        view=events.events,
        command=events.command,
        in_menu=True,
    ),
    Page(
        path="/spark",
        name="spark",
        title="Spark",
        needs=on_cluster,
        view=spark.spark,
        command=spark.command,
        in_menu=True,
    ),
)
STREAMS: Final[tuple[Stream, ...]] = (
    Stream(path="/events/stream", needs=on_cluster, events=events.stream),
)
ACTIONS: Final[tuple[Action, ...]] = ()
