"""AlterConfigs, key 33, v0-v2: replaces all overrides of topics, groups and client metrics.

v2 flexible. Old tools use this API: they read all configs, change some and write all of them back.
Newer tools use IncrementalAlterConfigs.
Not done: configs of brokers.
"""

from __future__ import annotations

from typing import Any

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.config_resources import alter_all, overrides_of
from gateway.topics.config_changes import ConfigChange, ConfigOperation


async def handle(request: Request, ctx: Context) -> Reply:
    return await alter_all(request, ctx, _changes)


def _changes(asked: Any, ctx: Context) -> list[ConfigChange]:
    named = {each.name for each in asked.configs}
    others = sorted(set(overrides_of(asked, ctx)) - named)
    return [
        *(ConfigChange(name, ConfigOperation.DELETE, None) for name in others),
        *(ConfigChange(each.name, ConfigOperation.SET, each.value) for each in asked.configs),
    ]


API = Api(key=33, name="AlterConfigs", versions=range(3), handle=handle)
