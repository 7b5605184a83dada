"""Goal: a real gateway bears hostile frames before a login, and its clients lose nothing.

Method: a few thousand drawn frames of `make proof-hostile-logins`, which sends a million: on
listeners with SASL, beside a producer and a consumer that have logged in.
"""

import pytest

from tests.hostile import logins

pytestmark = [pytest.mark.process, pytest.mark.slow]
SEED = 18
FRAMES = 4_000


def test_hostile_frames_before_a_login_leave_no_traceback_and_honest_clients_lose_nothing(tmp_path):
    seen = logins.run(FRAMES, SEED, tmp_path)
    print(seen)
    assert seen["wrong"] == []
    assert seen["frames"] >= FRAMES and seen["logins"] > 0
    assert seen["acknowledged_meanwhile"] > 0
