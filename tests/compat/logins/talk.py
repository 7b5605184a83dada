"""One connection of a scripted client, which notes each answer of a server that needs a login."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from gateway.core.scram_exchange import MECHANISMS, ScramClient, ScramFailed
from tests.gateway.secure_rig import Client

API_VERSIONS, METADATA, HANDSHAKE, AUTHENTICATE = 18, 3, 17, 36
USERS: Final = {"alice": "alice's secret", "bob": "bob's secret"}
ANSWER_S_MAX: Final = 60.0
CLOSED: Final = "closed"


class Talk:
    """A connection, and what the server answered so far, reduced to what can be compared."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.answers: list[Any] = []

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None) -> Talk:
        return cls(await Client.connect(port, tls))

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        """Ask a request. Returns the body of the answer, or None from a closed connection."""
        return await self._noted(self.client.ask(key, version, **fields))

    async def versions(self, version: int = 3) -> Any:
        fields = {"client_software_name": "logins", "client_software_version": "1"}
        return await self.ask(API_VERSIONS, version, **(fields if version >= 3 else {}))

    async def metadata(self) -> Any:
        return await self.ask(METADATA, 1, topics=[])

    async def handshake(self, mechanism: str, version: int = 1) -> Any:
        return await self.ask(HANDSHAKE, version, mechanism=mechanism)

    async def token(self, token: bytes, version: int = 2) -> bytes:
        """Send a token in SaslAuthenticate. Returns the answer's token."""
        answer = await self.ask(AUTHENTICATE, version, auth_bytes=token)
        return b"" if answer is None else bytes(answer.auth_bytes)

    async def frame(self, frame: bytes) -> bytes:
        """Send a frame as it is. Returns the frame that comes back, or b"" from a closed one."""

        async def sent() -> bytes:
            self.client.send_frame(frame)
            return await self.client.frame()

        return await self._noted(sent()) or b""

    async def plain(
        self, user: str = "alice", password: str | None = None, version: int = 2
    ) -> Any:
        given = USERS.get(user, "") if password is None else password
        await self.handshake("PLAIN")
        return await self.token(f"\0{user}\0{given}".encode(), version)

    async def scram(
        self,
        mechanism: str = "SCRAM-SHA-512",
        user: str = "alice",
        password: str | None = None,
        version: int = 2,
    ) -> None:
        await self.handshake(mechanism)
        exchange = exchange_of(mechanism, user, password)
        first = await self.token(exchange.first(), version)
        await self.token(final_of(exchange, first), version)

    async def _noted(self, asked: Any) -> Any:
        try:
            answer = await asyncio.wait_for(asked, ANSWER_S_MAX)
        except (OSError, asyncio.IncompleteReadError):
            self.answers.append(CLOSED)
            return None
        self.answers.append(reduced(answer))
        return answer


def exchange_of(mechanism: str, user: str = "alice", password: str | None = None) -> ScramClient:
    given = USERS.get(user, "none") if password is None else password
    return ScramClient(MECHANISMS[mechanism], user, given, "clientnonce")


def final_of(exchange: ScramClient, first: bytes) -> bytes:
    """Return the last message; one of a made-up answer if the server gave none."""
    try:
        return exchange.final(first)
    except ScramFailed:
        return exchange.final(b"r=clientnonceX,s=MDEyMw==,i=4096")


def reduced(answer: Any) -> Any:
    """Return an answer without what differs from run to run: nonces, salts, lists of versions."""
    if isinstance(answer, bytes):
        return shape_of(answer)
    found: dict[str, Any] = {}
    code = getattr(answer, "error_code", None)
    found["error"] = 0 if code is None else int(code.value)
    if hasattr(answer, "error_message"):
        found["message"] = answer.error_message
    if hasattr(answer, "mechanisms"):
        found["mechanisms"] = sorted(answer.mechanisms)
    if hasattr(answer, "auth_bytes"):
        found["token"] = shape_of(bytes(answer.auth_bytes))
    if hasattr(answer, "session_lifetime"):
        found["lifetime"] = answer.session_lifetime.total_seconds()
    return found


def shape_of(token: bytes) -> str:
    """Return what a token is."""
    if token.startswith(b"r="):
        parts = dict(each.split(b"=", 1) for each in token.split(b","))
        return f"challenge of {parts[b'i'].decode()} iterations"
    return "signature" if token.startswith(b"v=") else token.decode(errors="replace")
