"""ApiVersions, key 18, v0-v4: lists the APIs that this broker serves, with their versions.

v1 throttle time · v3 flexible, name of the client's software, features (but for those whose lowest
level is 0, which older clients cannot read) · v4 minimum version 0 of features.
The list comes from `table`, so every listed API has a handler. `dispatch` answers a request in an
unknown version in v0, with UNSUPPORTED_VERSION and its own versions. So the client can use a lower
version.
Source: KIP-35, KIP-511, KIP-584; Kafka's ApiVersionsResponse.java.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from gateway.features.features import Features
from gateway.handlers.api import Api, Context, Reply, Request

_NAMES_FROM = 3
_FEATURES_FROM = 3
_LEVEL_0_FROM = 4  # KAFKA-17492
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def reply_for(apis: Iterable[Api], error_code: int = 0) -> Reply:
    """Return the reply that lists `apis` by key."""
    return Reply(
        error_code=error_code,
        api_keys=[
            Reply(api_key=api.key, min_version=served.start, max_version=served.stop - 1)
            for api in sorted(apis, key=lambda each: each.key)
            for served in (api.advertised or api.versions,)
        ],
    )


def handle(request: Request, ctx: Context) -> Reply:
    """Return the reply that lists the APIs of `table`, or INVALID_REQUEST for odd names."""
    from gateway.handlers.table import rows  # imported late, because `table` imports this module

    body = request.body
    request.peer.looked_up += 1
    if request.version >= _NAMES_FROM and not (
        _SOFTWARE.fullmatch(body.client_software_name)
        and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        return reply_for([], ErrorCode.invalid_request)
    reply = reply_for(rows().values())
    if request.version >= _FEATURES_FROM:
        reply.update(_features(ctx.features, request.version))
    return reply


def _features(features: Features, version: int) -> Reply:
    finalized = features.finalized
    return Reply(
        supported_features=[
            Reply(name=name, min_version=levels.min, max_version=levels.max)
            for name, levels in features.supported.items()
            if levels.max and (levels.min or version >= _LEVEL_0_FROM)
        ],
        finalized_features_epoch=finalized.epoch,
        finalized_features=[
            Reply(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.levels.items()
        ],
    )


API = Api(key=18, name="ApiVersions", versions=range(5), handle=handle)
