"""A gRPC channel to one bookie: its options and its credentials."""

from __future__ import annotations

from ledger.adapters.grpc.grpc_config import GrpcClientConfig
from ledger.adapters.grpc.grpc_library import aio, grpc
from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX, WINDOW_BYTES

SERVICE = "ledger.wire.Bookie"


def open_channel(
    host: str, port: int, config: GrpcClientConfig, credentials: grpc.ChannelCredentials | None
) -> aio.Channel:
    """Create a channel that connects at its first call and shares nothing with other channels."""
    milliseconds = 1000
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", int(config.keepalive_s * milliseconds)),
        ("grpc.keepalive_timeout_ms", int(config.keepalive_timeout_s * milliseconds)),
        ("grpc.min_reconnect_backoff_ms", int(config.connect_timeout_s * milliseconds)),
    ]
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if credentials is None:
        return aio.insecure_channel(target, options)
    return aio.secure_channel(target, credentials, options)
