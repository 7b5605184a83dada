"""Goal: a token of OAUTHBEARER, good or bad, gets the answers of Apache Kafka 4.3.

Method: the recorded answers of Kafka to the same kinds of tokens, beside those of our port in this
process. With the proofs, Kafka and our port get the very same tokens.
"""

from __future__ import annotations

import pytest

from tests.compat.logins import tokens
from tests.compat.logins.tokens import INTENDED, accepted
from tests.gateway.issuer import Issuer

pytestmark = pytest.mark.real_loop


@pytest.fixture
def issuer():
    return Issuer()


def different(theirs, ours):
    assert theirs.keys() == ours.keys()
    return {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}


async def test_our_port_answers_tokens_as_kafka_but_for_the_intended_differences(tmp_path, issuer):
    given = tokens.tokens(issuer, Issuer())
    ours = await tokens.answers_of_ours(tmp_path, tokens.write_jwks(tmp_path, issuer), given)
    found = different(tokens.read_recorded(), ours)
    assert found.keys() == INTENDED.keys(), found
    good = {name for name in given if name.startswith("good")}
    assert {name for name, each in ours.items() if accepted(each)} == good - INTENDED.keys()


@pytest.mark.proof
@pytest.mark.compat
@pytest.mark.process
async def test_kafka_and_our_port_answer_the_same_tokens_alike(tmp_path, issuer):
    jwks, stranger = tokens.write_jwks(tmp_path, issuer), Issuer()
    with tokens.TokenKafka(tmp_path / "kafka", jwks) as kafka:
        given = tokens.tokens(issuer, stranger)
        theirs = await tokens.answers_of_kafka(kafka, given)
        ours = await tokens.answers_of_ours(tmp_path, jwks, given)
    assert theirs == tokens.read_recorded()
    assert different(theirs, ours).keys() == INTENDED.keys()
