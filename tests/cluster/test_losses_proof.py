"""Goal: stock clients lose nothing but what an operator gave up, and no offset is used twice.

Method: one round of `make proof-losses` without Spark, and `make proof-upgrade`; the whole history
is judged by the checker.
"""

from __future__ import annotations

import sys

import pytest

from tests.cluster import losses, upgrade

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

SEED = 7


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def test_records_are_lost_only_where_an_operator_gave_them_up(tmp_path):
    told = losses.run(tmp_path, 1, SEED, say, spark=False)
    assert told["violations"] == 0
    assert (told["lost"], told["doubled"], told["anomalies"]) == (0, 0, 0)
    assert told["accepted"] >= 2
    assert told["acked"] > 500


def test_a_rolling_upgrade_with_a_forced_close_in_it_loses_nothing_else(tmp_path):
    told = upgrade.run(tmp_path, upgrade.COMMIT, SEED, say)
    assert told["violations"] == 0
    assert (told["lost"], told["doubled"], told["anomalies"]) == (0, 0, 0)
    assert "log segment version 6" in told["refused"]
