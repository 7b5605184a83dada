"""Goal: an owner counts with the sizes that cleaned segments have now, and reads each of them once.

Method: real streams over a simulated cluster on virtual time. The tests clean segments by hand.
"""

from dataclasses import replace

from tests.ledger.cleaning_rig import clean
from tests.ledger.life_rig import taking_over, watched_rig
from tests.ledger.test_cleaned_segments import rolled


async def test_the_size_of_a_cleaned_segment_counts_and_not_the_one_before():
    async with watched_rig() as rig:
        owner = await rolled(rig, segments=3, records=40, size=500)
        await owner.add(1)
        sizes = [owner.stream._table.size_of(each) for each in owner.stream.segments]
        for number in (1, 2):
            await clean(owner.stream, number, lambda sequence_id: False)
        owner.kill()  # the newest snapshot has the sizes from before
        after = await taking_over(rig, "b")
        await after.add(1)
        rig.config = replace(rig.config, retention_bytes=sum(sizes[1:3]))
        assert await after.stream.expire() == 0
        assert after.stream._table.size_of(after.stream.segments[0]) < sizes[0] / 5


async def cleaned_to_nothing(rig, segments, size=500):
    """Return an owner that took over a stream behind the cleaning of its segments."""
    owner = await rolled(rig, segments, records=10, size=size)
    await owner.add(1)
    sizes = [owner.stream.segment_bytes(each) for each in owner.stream.segments[:segments]]
    for number in range(1, segments + 1):
        await clean(owner.stream, number, lambda sequence_id: False)
    owner.kill()  # the newest snapshot has the sizes from before
    after = await taking_over(rig, "b")
    await after.add(1)
    return after, sizes


async def test_an_owner_knows_the_sizes_of_cleaned_segments_soon_also_without_a_bound():
    async with watched_rig() as rig:
        owner, before = await cleaned_to_nothing(rig, 40)
        assert rig.config.retention_bytes < 0
        for _ in range(4):
            await owner.stream.expire()
        sizes = [owner.stream.segment_bytes(each) for each in owner.stream.segments[:40]]
        assert all(0 < now < old / 5 for now, old in zip(sizes, before, strict=True))


async def test_few_sizes_are_read_in_each_turn_and_each_of_them_once():
    async with watched_rig() as rig:
        owner, _ = await cleaned_to_nothing(rig, 40)
        read, asked = owner.services.client.read_metadata, []

        async def noting(ledger):
            asked.append(ledger)
            return await read(ledger)

        owner.services.client.read_metadata = noting
        counts = []
        for _ in range(5):
            await owner.stream.expire()
            counts.append(len(asked))
        assert counts == [16, 32, 40, 40, 40]
        assert asked == [each.ledger for each in owner.stream.segments[:40]]
        await clean(owner.stream, 1, lambda sequence_id: sequence_id == 5)
        asked.clear()
        await owner.stream.expire()
        assert asked == []  # the cleaner itself knows the size


async def test_a_bound_of_bytes_removes_nothing_before_all_sizes_are_known():
    async with watched_rig() as rig:
        owner, before = await cleaned_to_nothing(rig, 40)
        rig.config = replace(rig.config, retention_bytes=sum(before[:20]))
        for _ in range(4):
            assert await owner.stream.expire() == 0
        rig.config = replace(rig.config, retention_bytes=0)
        assert await owner.stream.expire() == 40


async def test_sizes_are_read_again_after_the_stream_was_opened_again():
    async with watched_rig() as rig:
        owner, before = await cleaned_to_nothing(rig, 3)
        await owner.stream.expire()
        await owner.stream.open(begin=True)
        assert owner.stream.segment_bytes(owner.stream.segments[0]) == before[0]
        await owner.stream.expire()
        assert owner.stream.segment_bytes(owner.stream.segments[0]) < before[0] / 5
