"""Goal: odd requests to change features get a typed answer, change nothing, and delay no client.

Method: UpdateFeatures as real requests over the simulator's store, with up to 100,000 features.
"""

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers import k57_update_features as update_features
from tests.gateway.handler_cluster import loaded_cluster
from tests.sim.turns import turns_during

MANY = 100_000
BAD = ErrorCode.invalid_update_version
TEXT_MAX = 1_000
TURNS_MIN = MANY // 1_000


async def asked(cluster, names, version, level=30):
    updates = [{"feature": name, "max_version_level": level, "upgrade_type": 1} for name in names]
    request = cluster.ask(
        update_features, version, timeout=1_000, feature_updates=updates, validate_only=False
    )
    return await turns_during(request)


@pytest.fixture(params=[0, 2])
def version(request):
    return request.param


@pytest.mark.slow
async def test_100_000_unknown_features_are_refused_with_one_name(version):
    async with loaded_cluster() as cluster:
        before = cluster.context.features.finalized
        names = ["metadata.version", *(f"feature-{number}" for number in range(MANY - 1))]
        answer, turns = await asked(cluster, names, version)
        assert answer.error_code is BAD
        assert len(answer.error_message) < TEXT_MAX
        assert turns >= TURNS_MIN, "other clients are served meanwhile"
        assert cluster.context.features.finalized == before


@pytest.mark.slow
async def test_one_feature_100_000_times_counts_once(version):
    async with loaded_cluster() as cluster:
        answer, turns = await asked(cluster, ["metadata.version"] * MANY, version)
        assert answer.error_code is ErrorCode.none
        assert turns >= TURNS_MIN
        assert cluster.context.features.finalized.epoch == 0


async def test_long_names_are_cut_in_the_answer(version):
    async with loaded_cluster() as cluster:
        for name in ("x" * 30_000, "\0" * 30_000, "\N{SNOWMAN}" * 10_000):
            answer, _ = await asked(cluster, [name], version)
            assert answer.error_code is BAD
            assert len(answer.error_message) < TEXT_MAX


@pytest.mark.parametrize("level", [-(2**15), -1, 0, 6, 31, 2**15 - 1])
async def test_a_level_out_of_range_changes_nothing(version, level):
    async with loaded_cluster() as cluster:
        before = cluster.context.features.finalized
        answer, _ = await asked(cluster, ["metadata.version"], version, level)
        assert answer.error_code is BAD
        assert cluster.context.features.finalized == before
