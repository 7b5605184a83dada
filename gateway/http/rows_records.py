"""Pages, streams, files and changes about records, and about the processes of a local cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.access import CLUSTER, Operation
from gateway.http.pages import (
    Action,
    Asked,
    Download,
    Needs,
    Page,
    Stream,
    on_cluster,
    on_group,
    on_topic,
)
from gateway.http.views.changes import (
    alter_topic,
    create_topic,
    delete_topic,
    remove_group,
    restore_group,
    seek_group,
)
from gateway.http.views.group_history import group_history, history_command
from gateway.http.views.messages import download, messages, messages_command
from gateway.http.views.processes import kill_process, processes, start_process
from gateway.http.views.record import record, record_command
from gateway.http.views.record_changes import copy_records, produce_record
from gateway.http.views.tail import tail


def _cluster(operation: Operation) -> Needs:
    return lambda path: (operation, CLUSTER)


def _topic(asked: Asked) -> str:
    return f"TOPIC:{asked.path['topic']}"


def _group(asked: Asked) -> str:
    return f"GROUP:{asked.path['group']}"


def _form(kind: str, name: str) -> Callable[[Asked], str]:
    return lambda asked: f"{kind}:{asked.form.get(name, '')}"


def _cluster_status(asked: Asked) -> str:
    return "gateway cluster status"


def _process(asked: Asked) -> str:
    return f"PROCESS:{asked.path['name']}"


PAGES: Final[tuple[Page, ...]] = (
    Page(
        path="/topics/{topic}/messages",
        name="messages",
        title="Messages",
        needs=on_topic(Operation.READ),
        view=messages,
        command=messages_command,
    ),
    Page(
        path="/topics/{topic}/{partition}/{offset}",
        name="record",
        title="A record's life",
        needs=on_topic(Operation.READ),
        view=record,
        command=record_command,
    ),
    Page(
        path="/groups/{group}/history",
        name="group_history",
        title="Time travel",
        needs=on_group(Operation.DESCRIBE),
        view=group_history,
        command=history_command,
    ),
    Page(
        path="/cluster/processes",
        name="processes",
        title="Processes",
        needs=on_cluster,
        view=processes,
        command=_cluster_status,
    ),
)
STREAMS: Final[tuple[Stream, ...]] = (
    Stream(path="/topics/{topic}/tail", needs=on_topic(Operation.READ), events=tail),
)
DOWNLOADS: Final[tuple[Download, ...]] = (
    Download(
        path="/topics/{topic}/messages.jsonl",
        needs=on_topic(Operation.READ),
        media_type="application/x-ndjson",
        pieces=download,
    ),
)
ACTIONS: Final[tuple[Action, ...]] = (
    Action(
        path="/topics/create",
        name="CREATE",
        needs=_cluster(Operation.CREATE),
        act=create_topic,
        resource=_form("TOPIC", "name"),
    ),
    Action(
        path="/topics/{topic}/produce",
        name="WRITE",
        needs=on_topic(Operation.WRITE),
        act=produce_record,
        resource=_topic,
    ),
    Action(
        path="/topics/{topic}/copy",
        name="WRITE",
        needs=on_topic(Operation.READ),
        act=copy_records,
        resource=_form("TOPIC", "to"),
    ),
    Action(
        path="/topics/{topic}/alter",
        name="ALTER_CONFIGS",
        needs=on_topic(Operation.ALTER_CONFIGS),
        act=alter_topic,
        resource=_topic,
    ),
    Action(
        path="/topics/{topic}/delete",
        name="DELETE",
        needs=on_topic(Operation.DELETE),
        act=delete_topic,
        resource=_topic,
    ),
    Action(
        path="/groups/{group}/seek",
        name="ALTER",
        needs=on_group(Operation.READ),
        act=seek_group,
        resource=_group,
    ),
    Action(
        path="/groups/{group}/restore",
        name="ALTER",
        needs=on_group(Operation.READ),
        act=restore_group,
        resource=_group,
    ),
    Action(
        path="/groups/{group}/delete",
        name="DELETE",
        needs=on_group(Operation.DELETE),
        act=remove_group,
        resource=_group,
    ),
    Action(
        path="/cluster/processes/{name}/kill",
        name="KILL",
        needs=_cluster(Operation.ALTER),
        act=kill_process,
        resource=_process,
    ),
    Action(
        path="/cluster/processes/{name}/start",
        name="START",
        needs=_cluster(Operation.ALTER),
        act=start_process,
        resource=_process,
    ),
)
