"""Goal: each API obeys the rights by each protocol and mechanism, on one gateway and on a cluster.

Method: all cases of the rights as a super user, a user with their rights and one without, by no
TLS, TLS, a certificate and each mechanism of SASL; at one embedded gateway and at two of a cluster.
"""

import pytest

from tests.compat.rights import matrix
from tests.compat.rights.all_cases import CASES

pytestmark = [pytest.mark.process, pytest.mark.proof]


@pytest.mark.parametrize("on_cluster", [False, True], ids=("embedded", "cluster"))
def test_each_api_obeys_the_rights_by_each_mechanism(tmp_path, on_cluster):
    asked, faults = matrix.run(tmp_path, on_cluster=on_cluster)
    print(dict(asked))
    assert faults == []
    assert asked.keys() == set(matrix.WAYS)
    assert min(asked.values()) >= 2 * len(CASES)
