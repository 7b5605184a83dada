"""Goal: APIs that are a preview are served and listed only with the switch.

Method: the options of both commands, and ApiVersions of a broker with and without the switch.
"""

from __future__ import annotations

import pytest

from gateway.handlers import table
from gateway.handlers.api import Peer
from gateway.process import dev, serve
from gateway.wire.messages import decode_response, encode_request
from ledger.command_line.program import flags_of
from tests.gateway.stream_cluster import StreamCluster

API_VERSIONS = 18
PEER = Peer("127.0.0.1", 1, "127.0.0.1", 9092)
COMMANDS = [(dev, dev.dev, []), (serve, serve.serve, ["--zookeeper", "z:1"])]


@pytest.mark.parametrize(("module", "command", "words"), COMMANDS, ids=["dev", "serve"])
def test_a_command_serves_transactions_only_with_its_flag(module, command, words):
    assert not module.config_of(flags_of(command, words)).transactions
    switched = flags_of(command, [*words, "--preview-transactions"])
    assert module.config_of(switched).transactions


@pytest.mark.parametrize("switch", [False, True])
async def test_api_versions_lists_a_preview_only_with_the_switch(switch):
    cluster = StreamCluster(transactions=switch)
    await cluster.start()
    frame = encode_request(API_VERSIONS, 0, 7, "test", {})
    request, handle = cluster.dispatcher.open(frame, PEER)
    encoded = b"".join(cluster.dispatcher.encode(request, handle(request, cluster.context)))
    listed = {row.api_key for row in decode_response(API_VERSIONS, 0, encoded).body.api_keys}
    previews = {key for key, api in table.rows(preview=True).items() if api.preview}
    assert listed == table.rows().keys() | (previews if switch else set())
    assert not previews & table.rows().keys()
    await cluster.partitions.stop()
