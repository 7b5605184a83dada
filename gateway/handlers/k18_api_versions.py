"""ApiVersions, key 18, v0-v4: which requests we serve, in which versions.

v1 throttle time · v3 flexible, client's software named · v4 a zero minimum for features.
The answer is read from the rows of `table`, so it cannot promise what nobody serves. A version that
we do not know is answered in v0 with UNSUPPORTED_VERSION and the list (`dispatch` does that), so
that the client can come down. Features: none are finalized.
Source: KIP-35, KIP-511, KIP-584; Kafka's ApiVersionsResponse.java.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.handlers.api import Api, Context, Reply, Request


def reply_for(apis: Iterable[Api], error_code: int = 0) -> Reply:
    """The list of `apis`, by rising key."""
    return Reply(
        error_code=error_code,
        api_keys=[
            Reply(api_key=api.key, min_version=served.start, max_version=served.stop - 1)
            for api in sorted(apis, key=lambda each: each.key)
            for served in (api.advertised or api.versions,)
        ],
    )


def handle(request: Request, ctx: Context) -> Reply:
    from gateway.handlers.table import rows  # it imports this file

    return reply_for(rows().values())


API = Api(key=18, name="ApiVersions", versions=range(5), handle=handle)
