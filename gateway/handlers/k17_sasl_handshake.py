"""SaslHandshake, key 17, v0-v1: begins an authentication by SASL, and lists the mechanisms.

v0 tokens follow as bare frames · v1 tokens follow in SaslAuthenticate.
A connection that authenticates takes this request itself; one that comes here is out of order:
after the login, or on a listener without SASL. Source: KIP-43, KIP-152; Kafka, KafkaApis.
Not done: the mechanism GSSAPI.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request


def handle(request: Request, ctx: Context) -> Reply:
    return Reply(error_code=ErrorCode.illegal_sasl_state)


API = Api(key=17, name="SaslHandshake", versions=range(2), handle=handle)
