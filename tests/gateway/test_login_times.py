"""Goal: the time of a failed login shows neither whether a user exists nor what its keys are.

Method: every commit compares the functions that run for an unknown user and for a wrong password,
call by call; a server that looks up made-up keys only when it needs them is planted, and found.
`make proof` measures 10,000 tries from the client's side, in a drawn order, and compares the times
by the test of Mann and Whitney. A difference counts if three runs of their own show it.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import sys
import time

import numpy as np
import pytest

from gateway.config import SaslConfig, TlsConfig
from gateway.core.scram_exchange import MECHANISMS, ScramClient
from gateway.server.logins import Logins
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls, secure_port

pytestmark = pytest.mark.real_loop
ALL = ("PLAIN", *MECHANISMS)
QUICK = SaslConfig(mechanisms=ALL, failure_s=0.1)
TRIES = 10_000
AT_ONCE = 100
P_MIN = 0.01
RUNS = 3


def calls_of(function, *arguments):
    """Return the names of the functions, Python's and C's, that a call makes, in their order.

    The digits of a made-up salt are left out: their number follows from the name alone.
    """
    found = []

    def note(frame, event, argument):
        if event == "call":
            found.append(frame.f_code.co_name)
        elif event == "c_call":
            found.append(argument.__qualname__)

    gc.disable()  # what a collection calls is of other tests
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
        gc.enable()
    return [each for each in found if each != "divmod"]


class Exchange:
    """One SCRAM exchange at the session of a port, with a wrong password."""

    def __init__(self, port, mechanism, user):
        from gateway.core.sasl_session import SaslSession

        logins = port.logins
        self.session = SaslSession(ALL, logins.credential_of, lambda: "SERVER")
        self.session.on_handshake(1, mechanism)
        self.client = ScramClient(MECHANISMS[mechanism], user, "wrong", "nonce")

    def first(self):
        return calls_of(self.session.on_token, self.client.first(), 0.0)

    def last(self):
        challenge = self.session.on_token(self.client.first(), 0.0)
        return calls_of(self.session.on_token, self.client.final(challenge.token), 0.0)


async def differing_calls(port, mechanism):
    """Return the steps of an exchange whose calls tell an unknown user from a known one."""
    port.logins.credential_of(MECHANISMS[mechanism], "warm")  # counts the iterations once
    return [
        step
        for step in ("first", "last")
        if getattr(Exchange(port, mechanism, "alice"), step)()
        != getattr(Exchange(port, mechanism, "malice"), step)()
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_an_unknown_user_and_a_wrong_password_run_the_same_functions(mechanism):
    async with secure_port(sasl=QUICK, protocols=("SASL_PLAINTEXT",)) as port:
        assert await differing_calls(port, mechanism) == []


async def test_made_up_keys_that_only_unknown_users_need_are_found(monkeypatch):
    careful = Logins.credential_of

    def hasty(self, mechanism, user):
        found = self._users.credential(user, mechanism)
        return careful(self, mechanism, user) if found is None else (found, True)

    monkeypatch.setattr(Logins, "credential_of", hasty)
    async with secure_port(sasl=QUICK, protocols=("SASL_PLAINTEXT",)) as port:
        assert await differing_calls(port, "SCRAM-SHA-512") == ["first"]


async def test_a_password_is_looked_up_by_the_same_functions_for_an_unknown_user():
    async with secure_port(sasl=QUICK, protocols=("SASL_PLAINTEXT",)) as port:

        def looked_up(user):
            port.logins._checks.add = lambda *_: None
            return calls_of(port.logins.check, user, b"wrong", "host")

        looked_up("warm")
        assert looked_up("alice") == looked_up("malice")


async def test_the_iterations_of_made_up_keys_are_counted_once_after_a_change():
    async with secure_port(sasl=QUICK, protocols=("SASL_PLAINTEXT",)) as port:
        counted = []
        count = port.users.all_iterations
        port.users.all_iterations = lambda mechanism: counted.append(mechanism) or count(mechanism)
        for _ in range(3):
            for mechanism in MECHANISMS.values():
                port.logins.credential_of(mechanism, "malice")
        assert counted == list(MECHANISMS.values())
        port.logins.changes += 1
        port.logins.credential_of(counted[0], "malice")
        assert len(counted) == 3


# -- the proof -------------------------------------------------------------------------------------


def p_of(left, right):
    """Return the two-sided p of the Mann-Whitney test, and whether `left` is the slower one."""
    both = np.concatenate([left, right])
    ranks = np.empty(len(both))
    ranks[np.argsort(both, kind="stable")] = np.arange(1, len(both) + 1)
    count, other = len(left), len(right)
    above = ranks[:count].sum() - count * (count + 1) / 2
    mean = count * other / 2
    deviation = math.sqrt(count * other * (count + other + 1) / 12)
    z = (above - mean) / deviation
    return math.erfc(abs(z) / math.sqrt(2)), z > 0


async def first_answers(port, draw, tls):
    """Return the times of first answers of SCRAM: of a known user, and of unknown ones."""
    times = {True: [], False: []}
    for index in range(TRIES):
        known = draw.random() < 0.5
        user = "alice" if known else f"mali{index % 10}"
        client = await Client.connect(port.at("SASL_SSL"), tls)
        await client.handshake("SCRAM-SHA-512")
        first = ScramClient(MECHANISMS["SCRAM-SHA-512"], user, "wrong", "nonce").first()
        began = time.perf_counter()
        await client.token(first)
        times[known].append(time.perf_counter() - began)
        client.close()
        Client.opened.clear()
    return times


async def failures(port, draw, tls, mechanism):
    """Return the times from the last token to the answer that the login failed."""
    times = {True: [], False: []}

    async def one(index):
        known = draw.random() < 0.5
        user = "alice" if known else f"mali{index % 10}"
        client = await Client.connect(port.at("SASL_SSL"), tls)
        await client.handshake(mechanism)
        token = f"\0{user}\0wrong".encode()
        if mechanism != "PLAIN":
            exchange = ScramClient(MECHANISMS[mechanism], user, "wrong", "nonce")
            answer = await client.token(exchange.first())
            token = exchange.final(bytes(answer.auth_bytes))
        began = time.perf_counter()
        await client.token(token)
        times[known].append(time.perf_counter() - began)
        client.close()

    for start in range(0, TRIES, AT_ONCE):
        await asyncio.gather(*(one(start + index) for index in range(AT_ONCE)))
        Client.opened.clear()
    return times


def planted(times):
    """Return times of which the unknown user's are 2 us longer."""
    return {True: times[True], False: [each + 2e-6 for each in times[False]]}


@pytest.mark.proof
@pytest.mark.parametrize("what", ["first", "PLAIN", "SCRAM-SHA-512"])
async def test_ten_thousand_tries_do_not_tell_an_unknown_user_from_a_wrong_password(what, tmp_path):
    authority = Authority(tmp_path / "ca")
    authority.issue("server")
    sasl = SaslConfig(mechanisms=ALL, failure_s=0.1, checks_per_address_max=256)
    tls = TlsConfig(keystore=authority.path / "server.pem")
    found = []
    async with secure_port(tls=tls, sasl=sasl, protocols=("SASL_SSL",)) as port:
        context = client_tls(authority)
        for seed in range(RUNS):
            draw = random.Random(seed)
            if what == "first":
                times = await first_answers(port, draw, context)
            else:
                times = await failures(port, draw, context, what)
            known, unknown = np.array(times[True]), np.array(times[False])
            p, is_known_slower = p_of(known, unknown)
            medians = [f"{np.median(each) * 1e6:.1f} us" for each in (known, unknown)]
            print(f"{what} seed {seed}: p = {p:.4f}, medians {medians}")
            found.append((p < P_MIN, is_known_slower))
            if p >= P_MIN:
                break
            if what == "first":
                assert p_of(known, np.array(planted(times)[False]))[0] != p
    assert not (len(found) == RUNS and len(set(found)) == 1 and found[0][0]), found
