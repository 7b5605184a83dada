"""Goal: with each right taken away in turn, each API answers as Apache Kafka 4.3 answers.

Method: the recorded answers of Kafka are compared with those of an embedded gateway, by the wire. A
client at 127.0.0.2 has the rights of each case; `python -m tests.compat.rights` records them again.
"""

import pytest

from gateway.handlers.table import rows
from tests.compat.rights import servers
from tests.compat.rights.all_cases import CASES
from tests.compat.rights.intended import REASONS, reason_of
from tests.compat.rights.recording import read_recorded
from tests.compat.rights.world import grants, versions_of

WITHOUT_RIGHTS = {17, 18, 36, 38, 39, 40, 41}
"""The APIs that need no right: they come before a login, or refuse tokens to everyone."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with servers.gateway(tmp_path_factory.mktemp("data")) as broker:
        return list(servers.differences(read_recorded(), servers.answers_of(broker)))


@pytest.mark.process
def test_the_answers_are_those_of_kafka(found):
    assert [line for line in found if reason_of(line) is None] == []


@pytest.mark.process
def test_each_intended_difference_is_there(found):
    unneeded = [start for start, _ in REASONS if not any(map(_begins(start), found))]
    assert unneeded == []


def _begins(start):
    return lambda line: line.startswith(start)


def test_every_api_in_every_version_is_recorded():
    titles = {
        f"{case} | {name} | v{version}"
        for case in CASES
        for name, _ in grants(case)
        for version in versions_of(case)
    }
    assert read_recorded().keys() == titles
    asked = {(case.key, version) for case in CASES for version in versions_of(case)}
    served = {(key, version) for key, api in rows().items() for version in api.versions}
    assert {each for each in served - asked if each[0] not in WITHOUT_RIGHTS} == set()
