"""Logins by SASL, each a script of one connection: in order, out of order, and wrong."""

from __future__ import annotations

import base64
import struct
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from gateway.core.scram_exchange import MECHANISMS
from tests.compat.logins.talk import AUTHENTICATE, HANDSHAKE, Talk, exchange_of, final_of

Play = Callable[[Talk], Awaitable[None]]
SASL, REAUTHENTICATING, PLAINTEXT = "SASL", "REAUTHENTICATING", "PLAINTEXT"
SESSION_S: Final = 3.0
ALL: Final = ("PLAIN", *MECHANISMS)


class Case(NamedTuple):
    """A script, and the listener it is played at."""

    name: str
    listener: str
    play: Play


CASES: list[Case] = []


def case(
    listener: str = SASL, *variants: object
) -> Callable[[Callable[..., Awaitable[None]]], Play]:
    """Register a script; with variants, one for each, which it takes as a further argument."""

    def register(play: Callable[..., Awaitable[None]]) -> Play:
        name = play.__name__.replace("_", " ")
        for variant in variants:

            async def varied(talk: Talk, variant: object = variant) -> None:
                await play(talk, variant)

            CASES.append(Case(f"{name}: {variant!r}", listener, varied))
        if not variants:
            CASES.append(Case(name, listener, play))
        return play

    return register


# -- in order --------------------------------------------------------------------------------------


@case(SASL, *((mechanism, version) for mechanism in ALL for version in (0, 1, 2)))
async def right_login(talk: Talk, how: tuple[str, int]) -> None:
    mechanism, version = how
    if mechanism == "PLAIN":
        await talk.plain(version=version)
    else:
        await talk.scram(mechanism, version=version)
    await talk.versions()


@case(SASL, *MECHANISMS)
async def bare_tokens(talk: Talk, mechanism: str) -> None:
    await talk.handshake(mechanism, version=0)
    exchange = exchange_of(mechanism)
    await talk.frame(final_of(exchange, await talk.frame(exchange.first())))
    await talk.versions()


@case()
async def bare_token_of_plain_gets_an_empty_frame(talk: Talk) -> None:
    await talk.handshake("PLAIN", version=0)
    await talk.frame(b"\0alice\0alice's secret")
    await talk.versions()


@case(SASL, 0, 1, 2, 3)
async def versions_come_first(talk: Talk, version: int) -> None:
    await talk.versions(version)
    await talk.scram()
    await talk.versions()


@case()
async def versions_of_an_unknown_version_come_first(talk: Talk) -> None:
    await talk.frame(struct.pack(">hhih", 18, 99, 1, -1) + b"\0\2a\2b\0")
    await talk.versions()
    await talk.scram()


@case(SASL, "", "a b", "-a", "a" * 300)
async def versions_with_a_bad_name_come_first(talk: Talk, name: str) -> None:
    await talk.ask(18, 3, client_software_name=name, client_software_version="1")
    await talk.scram()


# -- out of order ----------------------------------------------------------------------------------


@case()
async def metadata_first(talk: Talk) -> None:
    await talk.metadata()


@case()
async def metadata_after_versions(talk: Talk) -> None:
    await talk.versions()
    await talk.metadata()


@case(SASL, *ALL)
async def metadata_after_a_handshake(talk: Talk, mechanism: str) -> None:
    await talk.handshake(mechanism)
    await talk.metadata()


@case()
async def a_token_first(talk: Talk) -> None:
    await talk.token(b"\0alice\0alice's secret")


@case()
async def a_token_after_versions(talk: Talk) -> None:
    await talk.versions()
    await talk.token(b"\0alice\0alice's secret")


@case()
async def versions_twice(talk: Talk) -> None:
    await talk.versions()
    await talk.versions()


@case()
async def versions_after_a_handshake(talk: Talk) -> None:
    await talk.handshake("PLAIN")
    await talk.versions()


@case(SASL, *((version, mechanism) for version in (0, 1) for mechanism in ("PLAIN", "GSSAPI")))
async def second_handshake(talk: Talk, how: tuple[int, str]) -> None:
    version, mechanism = how
    await talk.handshake("PLAIN")
    await talk.handshake(mechanism, version)


@case()
async def second_handshake_of_version_0_is_taken_as_a_token(talk: Talk) -> None:
    await talk.handshake("PLAIN", version=0)
    await talk.handshake("PLAIN", version=0)


@case()
async def handshake_between_both_messages(talk: Talk) -> None:
    await talk.handshake("SCRAM-SHA-512")
    await talk.token(exchange_of("SCRAM-SHA-512").first())
    await talk.handshake("SCRAM-SHA-512")


@case()
async def headers_after_a_handshake_of_version_0(talk: Talk) -> None:
    await talk.handshake("PLAIN", version=0)
    await talk.token(b"\0alice\0alice's secret")


@case()
async def handshake_after_the_login(talk: Talk) -> None:
    await talk.plain()
    await talk.handshake("PLAIN")
    await talk.handshake("GSSAPI", version=0)
    await talk.versions()


@case(SASL, 0, 1, 2)
async def a_token_after_the_login(talk: Talk, version: int) -> None:
    await talk.scram()
    await talk.token(b"more", version)
    await talk.versions()


@case(PLAINTEXT, 0, 1)
async def handshake_without_sasl(talk: Talk, version: int) -> None:
    await talk.handshake("PLAIN", version)
    await talk.versions()


@case(PLAINTEXT, 0, 1, 2)
async def a_token_without_sasl(talk: Talk, version: int) -> None:
    await talk.token(b"x", version)
    await talk.versions()


@case(SASL, 2, 99, -1)
async def handshake_of_an_unknown_version(talk: Talk, version: int) -> None:
    await talk.frame(struct.pack(">hhihh5s", HANDSHAKE, version, 1, -1, 5, b"PLAIN"))


@case(SASL, 3, 99)
async def a_token_of_an_unknown_version(talk: Talk, version: int) -> None:
    await talk.handshake("PLAIN")
    await talk.frame(struct.pack(">hhihBB", AUTHENTICATE, version, 2, -1, 0, 1) + b"\0")


@case(SASL, b"\0" * 8, b"\x60\x82\x01\x02" * 4, b"\xff" * 16, b"\0\x12\0\0", b"\0\x11\0\1\0\0\0\1")
async def other_bytes_first(talk: Talk, frame: bytes) -> None:
    await talk.frame(frame)


# -- wrong mechanisms and tokens -------------------------------------------------------------------


@case(SASL, *((name, v) for name in ("GSSAPI", "", "plain", "PLAIN ", "x" * 300) for v in (0, 1)))
async def unsupported_mechanism(talk: Talk, how: tuple[str, int]) -> None:
    mechanism, version = how
    await talk.handshake(mechanism, version)
    await talk.handshake("PLAIN", version)


@case(SASL, *((mechanism, version) for mechanism in ALL for version in (0, 1, 2)))
async def wrong_password(talk: Talk, how: tuple[str, int]) -> None:
    mechanism, version = how
    if mechanism == "PLAIN":
        await talk.plain(password="wrong", version=version)
    else:
        await talk.scram(mechanism, password="wrong", version=version)
    await talk.versions()


@case(SASL, *ALL)
async def unknown_user(talk: Talk, mechanism: str) -> None:
    if mechanism == "PLAIN":
        await talk.plain("nobody", "x")
    else:
        await talk.handshake(mechanism)
        exchange = exchange_of(mechanism, "nobody")
        await talk.token(final_of(exchange, await talk.token(exchange.first())))


@case(SASL, *((mechanism, token) for mechanism in ALL for token in (b"", b"\0", b"\xff\xfe", b"x")))
async def odd_token(talk: Talk, how: tuple[str, bytes]) -> None:
    mechanism, token = how
    await talk.handshake(mechanism)
    await talk.token(token)
    await talk.versions()


@case(SASL, *ALL)
async def wrong_bare_token(talk: Talk, mechanism: str) -> None:
    await talk.handshake(mechanism, version=0)
    await talk.frame(b"\0alice\0wrong" if mechanism == "PLAIN" else b"n,,n=alice")


SECRET: Final = b"alice's secret"


@case(
    SASL,
    *(b"alice\0alice\0" + SECRET, b"bob\0alice\0" + SECRET, b"\0\0" + SECRET, b"\0alice\0"),
    *(b"\0alice", b"\0alice\0" + SECRET + b"\0", b"\0alice\0" + SECRET + b"\0x", b"alice"),
    *(b"\0 alice\0" + SECRET, b"\0\xff\0" + SECRET, b"\0alice\0\xff", b"\0bob\0" + SECRET),
)
async def token_of_plain(talk: Talk, token: bytes) -> None:
    await talk.handshake("PLAIN")
    await talk.token(token)


@case(
    SASL,
    *(b"y,,n=alice,r=c", b"p=tls-unique,,n=alice,r=c", b"n,,m=x,n=alice,r=c", b"n,,n=,r=c"),
    *(b"n,a=alice,n=alice,r=c", b"n,a=bob,n=alice,r=c", b"n,,n=alice,r=", b"n,,r=c,n=alice"),
    *(b"n,,n=alice,r=c,x=1", b"n,,n=al=2Cice,r=c", b"n,,n=al=ice,r=c", b"n,,n=alice,r=c,"),
    *(b"n,,n=alice,r=c,tokenauth=true", b"n,,n=\xc3\xa9,r=c", b"n,,n=a\0,r=c", b",,n=alice,r=c"),
    *(b"c=biws,r=c,p=AAAA", b"n,,n=" + b"u" * 65_536 + b",r=c"),
)
async def first_message(talk: Talk, token: bytes) -> None:
    await talk.handshake("SCRAM-SHA-512")
    await talk.token(token)


CHANGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "longer nonce": lambda final: final.replace(b",p=", b"0,p="),
    "other nonce": lambda final: final.replace(b"r=c", b"r=d"),
    "cut nonce": lambda final: final[: final.index(b",p=") - 1] + final[final.index(b",p=") :],
    "other channel flag": lambda final: final.replace(b"c=biws", b"c=eSws"),
    "cut proof": lambda final: final[:-4],
    "proof of another size": lambda final: _with_proof(final, bytes(20)),
    "other proof": lambda final: _with_proof(final, bytes(64)),
    "an extension": lambda final: final.replace(b",p=", b",x=1,p="),
    "bytes behind": lambda final: final + b",x",
    "no base64": lambda final: final[:-4] + b"!!!!",
    "the first message again": lambda final: b"n,,n=alice,r=clientnonce",
    "nothing": lambda final: b"",
}


def _with_proof(final: bytes, proof: bytes) -> bytes:
    return final[: final.index(b"p=") + 2] + base64.b64encode(proof)


@case(SASL, *CHANGES)
async def last_message(talk: Talk, change: str) -> None:
    await talk.handshake("SCRAM-SHA-512")
    exchange = exchange_of("SCRAM-SHA-512")
    final = final_of(exchange, await talk.token(exchange.first()))
    await talk.token(CHANGES[change](final))


@case()
async def proof_of_another_user(talk: Talk) -> None:
    await talk.handshake("SCRAM-SHA-512")
    first = await talk.token(exchange_of("SCRAM-SHA-512").first())
    await talk.token(final_of(exchange_of("SCRAM-SHA-512", "bob"), first))


# -- again -----------------------------------------------------------------------------------------


@case(REAUTHENTICATING, *ALL)
async def same_user_again(talk: Talk, mechanism: str) -> None:
    for _ in range(2):
        if mechanism == "PLAIN":
            await talk.plain()
        else:
            await talk.scram(mechanism)
        await talk.versions()


@case(REAUTHENTICATING, *ALL)
async def another_user_again(talk: Talk, mechanism: str) -> None:
    for user in ("alice", "bob"):
        if mechanism == "PLAIN":
            await talk.plain(user)
        else:
            await talk.scram(mechanism, user)
    await talk.versions()


@case(REAUTHENTICATING, *ALL)
async def wrong_password_again(talk: Talk, mechanism: str) -> None:
    for password in (None, "wrong"):
        if mechanism == "PLAIN":
            await talk.plain(password=password)
        else:
            await talk.scram(mechanism, password=password)
    await talk.versions()


@case(REAUTHENTICATING)
async def another_mechanism_again(talk: Talk) -> None:
    await talk.plain()
    await talk.handshake("SCRAM-SHA-512")
    await talk.token(exchange_of("SCRAM-SHA-512").first())


@case(REAUTHENTICATING)
async def unsupported_mechanism_again(talk: Talk) -> None:
    await talk.plain()
    await talk.handshake("GSSAPI")
    await talk.versions()


@case(REAUTHENTICATING, 0, 1)
async def handshake_of_a_version_again(talk: Talk, version: int) -> None:
    await talk.plain()
    await talk.handshake("PLAIN", version)
    await talk.token(b"\0alice\0alice's secret")
    await talk.versions()


@case(REAUTHENTICATING)
async def metadata_within_the_second_login(talk: Talk) -> None:
    await talk.plain()
    await talk.handshake("PLAIN")
    await talk.metadata()


@case(REAUTHENTICATING)
async def versions_within_the_second_login(talk: Talk) -> None:
    await talk.plain()
    await talk.handshake("PLAIN")
    await talk.versions()


@case(REAUTHENTICATING)
async def a_third_login_at_once(talk: Talk) -> None:
    for _ in range(3):
        await talk.plain()
    await talk.versions()


@case(REAUTHENTICATING)
async def a_token_without_a_second_handshake(talk: Talk) -> None:
    await talk.plain()
    await talk.token(b"\0alice\0alice's secret")
    await talk.versions()
