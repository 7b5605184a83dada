"""AlterConfigs, key 33, v0-v2: replaces all overrides of a topic, a broker or another resource.

v2 flexible. Old tools use this API: they read all configs, change some and write all of them back.
Newer tools use IncrementalAlterConfigs.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.config_resources import alter_all, overrides_of
from gateway.handlers.k32_describe_configs import ResourceType
from gateway.handlers.topic_replies import AdminRefusal
from gateway.topics.config_changes import ConfigChange, ConfigOperation


async def handle(request: Request, ctx: Context) -> Reply:
    return await alter_all(request, ctx, _changes)


def _changes(asked: Any, ctx: Context) -> list[ConfigChange]:
    if asked.resource_type == ResourceType.BROKER_LOGGER:
        text = f"Unknown resource type {asked.resource_type}"
        raise AdminRefusal(ErrorCode.invalid_request, text)
    named = {each.name for each in asked.configs}
    others = sorted(set(overrides_of(asked, ctx)) - named)
    return [
        *(ConfigChange(name, ConfigOperation.DELETE, None) for name in others),
        *(ConfigChange(each.name, ConfigOperation.SET, each.value) for each in asked.configs),
    ]


API = Api(key=33, name="AlterConfigs", versions=range(3), handle=handle)
