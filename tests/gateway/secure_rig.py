"""A Kafka port with TLS and SASL in this process, and a client that speaks to it byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import ClassVar

from gateway.config import ConnectionLimits, GatewayConfig, Listener, SaslConfig, TlsConfig
from gateway.core.scram_credentials import Deletion, Mechanism, Upsertion
from gateway.core.scram_exchange import MECHANISMS, ScramClient, salted_password
from gateway.handlers import k17_sasl_handshake, k18_api_versions, k36_sasl_authenticate
from gateway.handlers.api import Api, Reply
from gateway.server.dispatch import Dispatcher
from gateway.server.listener import Server
from gateway.server.logins import Logins
from gateway.server.secure_listeners import SecureListeners
from gateway.settings.scram_users import ScramUsers
from gateway.wire.messages import decode_response, encode_request
from tests.sim.metadata import SimMetadata

SECRET = bytes(range(32))
PASSWORD = "pa,ss=wörd"
LEAVE_GROUP = 13  # answers with the principal of its client, as error of an unknown member


def whoami(request, ctx):
    ctx.principals.append(request.peer.principal)
    return Reply(error_code=0, members=[])


WHO = Api(key=LEAVE_GROUP, name="WhoAmI", versions=range(6), handle=whoami)
APIS = (k17_sasl_handshake.API, k18_api_versions.API, k36_sasl_authenticate.API, WHO)


class Port:
    """The port, its users, and the principals of the requests that it served."""

    def __init__(self, server, users, logins, secure, principals, store):
        self.server, self.users, self.logins = server, users, logins
        self.secure, self.principals, self.store = secure, principals, store

    @property
    def registry(self):
        return self.server.registry

    def at(self, name):
        return next(each.port for each in self.server.listeners if each.name == name)


def salted(mechanism, password=PASSWORD, iterations=4096, salt=b"salt of the user"):
    return salted_password(mechanism, password, salt, iterations)


async def add_user(users, name="alice", password=PASSWORD, mechanisms=tuple(Mechanism)):
    for each in mechanisms:
        salt = b"salt of the user"
        key = salted(each, password)
        await users.alter(Upsertion(name, each, 4096, salt, key))


async def delete_user(users, name="alice", mechanisms=tuple(Mechanism)):
    for each in mechanisms:
        await users.alter(Deletion(name, each))


@asynccontextmanager
async def secure_port(
    tls=None, sasl=None, limits=None, protocols=("SSL", "SASL_SSL"), bearers=None, own=None
):
    """Serve a listener for each protocol, with the user alice.

    `own` are the fields of the configuration that single listeners have of their own.
    """
    store = SimMetadata()
    users = ScramUsers(store)
    await users.load()
    await add_user(users)
    logins = Logins(users, SECRET, sasl or SaslConfig(), bearers)
    listeners = tuple(Listener(each, "127.0.0.1", 0, protocol=each) for each in protocols)
    config = GatewayConfig(
        listeners=listeners, tls=tls or TlsConfig(), sasl=logins.config, **(own or {})
    )
    secure = SecureListeners(config, logins)
    features = SimpleNamespace(supported={}, finalized=SimpleNamespace(epoch=-1, levels={}))
    ctx = SimpleNamespace(principals=[], features=features)
    dispatcher = Dispatcher({api.key: api for api in APIS}, ctx)
    server = Server(dispatcher, limits or ConnectionLimits(), secure=secure)
    await server.start_all(listeners)
    try:
        yield Port(server, users, logins, secure, ctx.principals, store)
    finally:
        while Client.opened:
            Client.opened.pop().close()
        await server.stop(1.0)
        logins.close()
        await users.close()


def client_tls(authority, keystore=None, **options):
    """Return the TLS of a client, with this file of its key and certificate."""
    context = ssl.create_default_context(cafile=str(authority.trusted))
    if keystore is not None:
        context.load_cert_chain(keystore)
    for name, value in options.items():
        setattr(context, name, value)
    return context


class Client:
    """One connection, which sends frames and reads them."""

    opened: ClassVar = []  # those of this test; the port closes them when it ends

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.number = 0
        self.opened.append(self)

    @classmethod
    async def connect(cls, port, tls=None):
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    def send_frame(self, frame):
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def frame(self):
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    def send(self, key, version, **fields):
        self.number += 1
        self.send_frame(encode_request(key, version, self.number, "test", fields))

    async def ask(self, key, version, **fields):
        self.send(key, version, **fields)
        answer = decode_response(key, version, await self.frame())
        assert answer.correlation_id == self.number
        return answer.body

    async def who(self):
        """Ask the request that notes the principal."""
        return await self.ask(LEAVE_GROUP, 3, group_id="g", members=[])

    async def handshake(self, mechanism, version=1):
        return await self.ask(17, version, mechanism=mechanism)

    async def token(self, token, version=2):
        return await self.ask(36, version, auth_bytes=token)

    async def plain(self, user="alice", password=PASSWORD):
        await self.handshake("PLAIN")
        return await self.token(f"\0{user}\0{password}".encode())

    async def scram(self, mechanism="SCRAM-SHA-512", user="alice", password=PASSWORD):
        """Log in. Returns the last answer, or the one that refused."""
        assert (await self.handshake(mechanism)).error_code.value == 0
        exchange = ScramClient(MECHANISMS[mechanism], user, password, f"nonce{self.number}")
        answer = await self.token(exchange.first())
        if answer.error_code.value:
            return answer
        answer = await self.token(exchange.final(bytes(answer.auth_bytes)))
        if not answer.error_code.value:
            exchange.check(bytes(answer.auth_bytes))
        return answer

    async def is_closed(self):
        """Read to the end, which the server sends."""
        try:
            return await self.reader.read() == b""
        except OSError:
            return True

    def close(self):
        self.writer.transport.abort()
