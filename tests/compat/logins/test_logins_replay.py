"""Goal: a login by SASL, right, wrong or out of order, gets the answers of Apache Kafka 4.3.

Method: the recorded answers of Kafka to scripts of one connection each, beside those of our port in
this process. `python -m tests.compat.logins` records Kafka's answers again.
"""

from __future__ import annotations

import pytest

from tests.compat.logins.cases import CASES
from tests.compat.logins.intended import INTENDED, reason_of
from tests.compat.logins.servers import answers_of_ours, read_recorded

pytestmark = pytest.mark.real_loop


async def test_our_port_answers_as_kafka_but_for_the_intended_differences(tmp_path):
    theirs = read_recorded()
    ours = await answers_of_ours(CASES, tmp_path)
    assert theirs.keys() == ours.keys()
    different = {name for name in theirs if theirs[name] != ours[name]}
    unexplained = [name for name in different if reason_of(name) is None]
    assert unexplained == [], [(theirs[name], ours[name]) for name in unexplained]
    named = {name for name in theirs if reason_of(name) is not None}
    assert named == different  # none is named in vain
    assert len(INTENDED) < len(different)
