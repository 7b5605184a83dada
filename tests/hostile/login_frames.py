"""Frames that no client should send before its login, drawn from a seed.

They are handshakes, tokens of every mechanism and ApiVersions: mutated, cut, grown, in wrong
orders, with other keys, versions and lengths; other requests; and bytes of other protocols.
"""

from __future__ import annotations

import random
import struct

from gateway.wire.messages import encode_request
from tests.gateway.issuer import message_of

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TOKENS = (
    *(b"", b"\0", b"\1", b"n,,", b"n,,n=alice,r=c", b"c=biws,r=c,p=AAAA", b"\0alice\0wrong"),
    b"n,,n=" + b"u" * 5_000 + b",r=c",
    b"\xff" * 300,
    b"n,,\1auth=Bearer a.b.c\1\1",
    b"\0a\0b\0c",
    message_of("e30." * 2_000),
    b"n,,n=alice,r=" + b"c" * 9_000,
)
FOREIGN = (
    b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + bytes(40),  # a TLS hello
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
)


class Drawn:
    """Frames, and scripts of them for one connection."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.handshakes = [
            encode_request(17, version, 1, "c", {"mechanism": each})
            for version in (0, 1)
            for each in (*MECHANISMS, "GSSAPI", "", "x" * 400)
        ]
        names = {"client_software_name": "c", "client_software_version": "1"}
        self.whole = [
            *self.handshakes,
            *(
                encode_request(36, version, 2, "c", {"auth_bytes": each})
                for version in (0, 1, 2)
                for each in TOKENS
            ),
            encode_request(18, 0, 3, "c", {}),
            encode_request(18, 3, 3, "c", names),
            encode_request(3, 1, 4, "c", {"topics": [{"name": "t"}]}),
        ]

    def frame(self) -> bytes:
        """Return one frame as it is sent, with its size, right or wrong."""
        draw = self.draw
        body = bytearray(draw.choice(self.whole))
        how = draw.randrange(9)
        if how == 0:
            del body[draw.randrange(len(body)) :]
        elif how == 1:
            for _ in range(draw.randrange(1, 5)):
                body[draw.randrange(len(body))] = draw.randrange(256)
        elif how == 2:
            body[:4] = struct.pack(">hh", draw.randrange(-2, 95), draw.randrange(-2, 20))
        elif how == 3:
            body = bytearray(draw.randbytes(draw.randrange(0, 200)))
        elif how == 4:
            body += draw.randbytes(draw.randrange(1, 50))
        elif how == 5 and draw.random() < 0.2:
            return draw.choice(FOREIGN)
        size = len(body)
        if draw.random() < 0.1:
            size = draw.choice(
                (0, 1, 7, -1, 2**31 - 1, 512 * 1024 + 1, size + 1, size - 1, 300_000)
            )
        return struct.pack(">i", size) + bytes(body)

    def script(self, more_max: int = 5) -> list[bytes]:
        """Return some frames for one connection; often a right handshake comes first."""
        first = [] if self.draw.random() < 0.5 else [framed(self.draw.choice(self.handshakes))]
        return [*first, *(self.frame() for _ in range(self.draw.randrange(1, more_max + 1)))]

    def script_of_login(self, user: str, password: str) -> list[bytes]:
        """Return a right login by PLAIN, and hostile frames behind it without a pause."""
        token = f"\0{user}\0{password}".encode()
        login = (
            encode_request(17, 1, 1, "c", {"mechanism": "PLAIN"}),
            encode_request(36, 2, 2, "c", {"auth_bytes": token}),
        )
        return [*map(framed, login), *(self.frame() for _ in range(self.draw.randrange(1, 6)))]


def framed(body: bytes) -> bytes:
    """Return a frame with its size."""
    return struct.pack(">i", len(body)) + body
