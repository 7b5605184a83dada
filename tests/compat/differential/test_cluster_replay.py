"""Goal: a cluster of two gateways answers as Apache Kafka 4.3 does, wherever a client begins.

Method: the recorded requests of all APIs go to one of two gateways, which the name of the case
chooses. The player follows refusals to leaders and coordinators as a client does, and puts split
answers together. All brokers of the cluster count as one; other differences must be intended.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.differential import servers
from tests.compat.differential.cluster import TwoGateways
from tests.compat.differential.intended import INTENDED, explanations
from tests.compat.differential.intended_on_cluster import ON_CLUSTER
from tests.compat.differential.outcome import outcome
from tests.compat.differential.recording import recorded_cases
from tests.compat.differential.script import case_files

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGateways]:
    with servers.cluster(tmp_path_factory.mktemp("differential")) as started:
        servers.warm_up_cluster(started)
        yield started


@pytest.mark.parametrize("key", sorted(case_files()))
def test_all_answers_of_a_cluster_are_those_of_kafka(key: int, both: TwoGateways) -> None:
    unexplained = [
        str(each)
        for case in recorded_cases(key)
        for each in outcome(
            case, servers.redirected(both, case.title).play(case.steps), one_node=True
        )
        if not explanations(each, (*INTENDED, *ON_CLUSTER))
    ]
    assert not unexplained, f"{len(unexplained)} differences\n" + "\n".join(unexplained[:20])
