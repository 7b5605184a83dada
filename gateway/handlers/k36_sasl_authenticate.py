"""SaslAuthenticate, key 36, v0-v2: carries the tokens of a mechanism of SASL.

v1 lifetime of the session · v2 flexible.
A connection that authenticates takes this request itself; one that comes here is out of order:
after the login, or on a listener without SASL. Source: KIP-152, KIP-368; Kafka, KafkaApis.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request

_OUT_OF_ORDER: Final = "SaslAuthenticate request received after successful authentication"


def handle(request: Request, ctx: Context) -> Reply:
    return Reply(error_code=ErrorCode.illegal_sasl_state, error_message=_OUT_OF_ORDER)


API = Api(key=36, name="SaslAuthenticate", versions=range(3), handle=handle)
