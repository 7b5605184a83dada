"""Goal: connections between gateways authenticate, and log in again before their session ends.

Method: the links of a gateway to a port with TLS and SASL in this process.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.cluster.peer_links import LinkLimits, PeerLinks
from gateway.cluster.peers import PEER_CLIENT_ID
from gateway.cluster.port import ClusterMember
from gateway.config import GatewayConfig, Listener, SaslConfig, TlsConfig
from gateway.process.secure_ports import CannotSecure, connecting
from gateway.server.registry import Refused
from gateway.wire import client_link
from gateway.wire.client_link import Link
from gateway.wire.messages import encode_request_body
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import LEAVE_GROUP, PASSWORD, secure_port

pytestmark = pytest.mark.real_loop
LISTENERS = {each: Listener(each, "127.0.0.1", 0, protocol=each) for each in ("SSL", "SASL_SSL")}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    (made.path / "password").write_text(f"{PASSWORD}\n")
    (made.path / "password").chmod(0o600)
    (made.path / "wrong").write_text("wrong\n")
    (made.path / "wrong").chmod(0o600)
    return made


def config_of(authority, password="password", **sasl):
    tls = TlsConfig(
        keystore=authority.path / "server.pem",
        truststore=authority.trusted,
        client_auth="requested",
    )
    reference = f"file:{authority.path / password}"
    return GatewayConfig(tls=tls, sasl=SaslConfig(user="alice", password=reference, **sasl))


def links_to(port, name, config):
    member = ClusterMember(7, "127.0.0.1", port.at(name), "", "")
    cluster = SimpleNamespace(
        members=lambda: [member], peer_security=connecting(config, LISTENERS[name])
    )
    return PeerLinks(cluster, LinkLimits(pause_s_first=0.001, pause_s_max=0.001))


async def asked(links):
    answer = asyncio.get_running_loop().create_future()
    fields = {"group_id": "g", "members": []}

    def encode(version):
        return encode_request_body(LEAVE_GROUP, version, fields)

    links.ask(7, LEAVE_GROUP, encode, answer.set_result)
    return await answer


@pytest.mark.parametrize(
    ("name", "principal"), [("SSL", "User:CN=server"), ("SASL_SSL", "User:alice")]
)
async def test_a_link_authenticates(name, principal, authority):
    config = config_of(authority)
    async with secure_port(tls=config.tls) as port:
        links = links_to(port, name, config)
        assert (await asked(links)).error_code.value == 0
        assert (await asked(links)).error_code.value == 0
        assert port.principals == [principal] * 2
        assert len(port.registry.connections) == 1
        await links.close()


async def test_a_link_with_a_wrong_password_gets_no_answer(authority):
    config = config_of(authority, "wrong")
    async with secure_port(tls=config.tls, sasl=SaslConfig(failure_s=0.1)) as port:
        links = links_to(port, "SASL_SSL", config)
        assert await asked(links) is None
        assert port.registry.refusals[Refused.LOGIN] == 1
        await links.close()


async def test_a_link_is_replaced_before_its_session_ends(authority, monkeypatch):
    monkeypatch.setattr(client_link, "SESSION_SHARE", 0.0)
    config = config_of(authority)
    async with secure_port(tls=config.tls, sasl=SaslConfig(session_s=600.0)) as port:
        link = Link(
            "127.0.0.1",
            port.at("SASL_SSL"),
            5.0,
            PEER_CLIENT_ID,
            connecting(config, LISTENERS["SASL_SSL"]),
        )
        await link.open(5.0)
        assert link.is_over
        await link.close()


def test_a_password_that_others_can_read_is_refused(authority):
    (authority.path / "open").write_text("x")
    (authority.path / "open").chmod(0o640)
    with pytest.raises(CannotSecure, match="run chmod 600"):
        connecting(config_of(authority, "open"), LISTENERS["SASL_SSL"])
