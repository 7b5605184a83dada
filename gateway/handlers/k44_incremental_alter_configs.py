"""IncrementalAlterConfigs, key 44, v0-v1: sets, deletes or extends single overrides of resources.

v1 flexible. Each broker applies a change when it has read it from the metadata store; quorums and
segment sizes apply from a partition's next segment on.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.config_resources import alter_all
from gateway.handlers.k32_describe_configs import ResourceType
from gateway.handlers.topic_replies import AdminRefusal
from gateway.topics.config_changes import ConfigChange, ConfigOperation


async def handle(request: Request, ctx: Context) -> Reply:
    return await alter_all(request, ctx, _changes)


def _changes(asked: Any, ctx: Context) -> list[ConfigChange]:
    kind = asked.resource_type
    return [ConfigChange(each.name, _operation(kind, each), each.value) for each in asked.configs]


def _operation(kind: int, asked: Any) -> ConfigOperation:
    try:
        return ConfigOperation(asked.config_operation)
    except ValueError:
        words = "operations type" if kind == ResourceType.BROKER else "operation type id"
        raise AdminRefusal(
            ErrorCode.invalid_request, f"Unknown {words} {asked.config_operation}"
        ) from None


API = Api(key=44, name="IncrementalAlterConfigs", versions=range(2), handle=handle)
