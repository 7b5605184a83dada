"""IncrementalAlterConfigs, key 44, v0-v1: some settings of topics are set, deleted, appended to.

v1 flexible. What is not named stays as it is. It acts at once, on every gateway as soon as that
has noticed; quorums and segment sizes act from a partition's next segment on.
Not done: settings of brokers, loggers, client metrics and groups: none can be altered.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.config_resources import alter_all
from gateway.handlers.topic_replies import Refused
from gateway.topics.config_changes import ConfigChange, ConfigOperation


async def handle(request: Request, ctx: Context) -> Reply:
    return await alter_all(request, ctx, _changes)


def _changes(asked: Any, ctx: Context) -> list[ConfigChange]:
    return [ConfigChange(each.name, _operation(each), each.value) for each in asked.configs]


def _operation(asked: Any) -> ConfigOperation:
    try:
        return ConfigOperation(asked.config_operation)
    except ValueError:
        raise Refused(
            ErrorCode.invalid_request, f"Unknown operation type id {asked.config_operation}"
        ) from None


API = Api(key=44, name="IncrementalAlterConfigs", versions=range(2), handle=handle)
