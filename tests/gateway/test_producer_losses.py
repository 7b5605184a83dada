"""Goal: after a loss no batch that may lie in it is written again, and every producer goes on.

Method: the state of producers by hand; a twin that knows what the lost part held, on random
producers with retries; encoded states; the partition of a simulated cluster.
"""

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.producer_losses import REFUSED_MAX
from gateway.core.producer_states import AcceptedBatch, ProducerStates

OK = ErrorCode.none
UNKNOWN = ErrorCode.unknown_producer_id


def accept(states, producer, epoch, first, records, offset):
    states.accept(producer, epoch, first, records, offset, -1, 0, durable_offset=offset)


def with_loss(first_certain_id=-1):
    """Producer 1 wrote offsets 0 to 3; offsets 4 to 9 are lost; producer 2 wrote 10 and 11."""
    states = ProducerStates()
    accept(states, 1, 0, 0, 2, 0)
    accept(states, 1, 0, 2, 2, 2)
    states.losses.pass_loss(9, now_ms=0)
    states.losses.first_certain_id = first_certain_id
    accept(states, 2, 0, 4, 2, 10)
    return states


def test_a_producer_that_wrote_nothing_since_the_loss_is_refused():
    states = with_loss()
    assert states.check(1, 0, 4, 2) is UNKNOWN, "the next sequence may lie in the loss"
    assert states.check(1, 0, 6, 2) is UNKNOWN
    assert states.check(1, 0, 4, 2) is UNKNOWN, "and so may a retry"


def test_a_retry_of_a_batch_that_is_known_gets_its_offset():
    verdict = with_loss().check(1, 0, 2, 2)
    assert isinstance(verdict, AcceptedBatch)
    assert verdict.base_offset == 2


def test_a_producer_that_wrote_since_the_loss_goes_on():
    states = with_loss()
    assert states.check(2, 0, 6, 1) is OK
    assert states.check(2, 0, 9, 1) is ErrorCode.out_of_order_sequence_number


def test_a_refused_producer_begins_again_in_a_higher_epoch():
    states = with_loss()
    assert states.check(1, 1, 0, 2) is UNKNOWN, "the epoch may have begun in the loss"
    assert states.check(1, 1, 0, 2) is UNKNOWN
    assert states.check(1, 2, 3, 2) is UNKNOWN, "and not in the middle"
    assert states.check(1, 3, 0, 2) is OK
    accept(states, 1, 3, 0, 2, 12)
    assert states.check(1, 3, 2, 2) is OK
    assert states.check(1, 2, 0, 2) is ErrorCode.invalid_producer_epoch


def test_a_late_batch_of_an_old_epoch_does_not_clear_a_newer_one():
    states = with_loss()
    assert states.check(1, 3, 0, 2) is UNKNOWN
    assert states.check(1, 1, 0, 2) is UNKNOWN
    assert states.check(1, 3, 0, 2) is UNKNOWN, "it may be a retry all the same"
    assert states.check(1, 4, 0, 2) is OK


def test_an_unknown_producer_is_refused_unless_its_id_is_newer_than_the_loss():
    states = with_loss(first_certain_id=1000)
    for first in (0, 7):
        assert states.check(999, 0, first, 1) is UNKNOWN
        assert states.check(1000, 0, first, 1) is OK
    assert states.check(999, 1, 0, 1) is OK
    assert with_loss().check(1000, 0, 0, 1) is UNKNOWN


def test_a_second_loss_puts_all_in_doubt_again():
    states = with_loss(first_certain_id=5)
    states.losses.pass_loss(20, now_ms=0)
    assert states.losses.needs_certain_id
    assert states.check(2, 0, 6, 1) is UNKNOWN
    assert states.check(5, 0, 0, 1) is UNKNOWN


def test_a_loss_survives_a_snapshot_and_is_forgotten_after_a_day():
    states = with_loss(first_certain_id=7)
    again = ProducerStates()
    assert all(step is None for step in again.load(states.encode(100)))
    assert again.losses.encode() == states.losses.encode()
    assert again.check(1, 0, 4, 2) is UNKNOWN
    again.expire(1000, 1000, 10, durable_offset=100)
    assert again.check(1, 0, 4, 2) is UNKNOWN
    again.expire(1001, 1000, 10, durable_offset=100)
    assert again.losses.end_offset == 0
    assert again.check(77, 0, 4, 2) is OK


def test_a_state_without_a_loss_keeps_the_format_that_other_releases_read():
    states = ProducerStates()
    accept(states, 1, 0, 0, 2, 0)
    assert states.encode(100)[0] == 1
    assert with_loss().encode(100)[0] == 2
    fresh = with_loss()
    assert [*fresh.load(states.encode(100))] != [1]
    assert fresh.losses.end_offset == 0


@pytest.mark.parametrize("cut", range(40))
def test_a_state_with_a_loss_cut_anywhere_is_refused(cut):
    whole = with_loss().encode(100)
    with pytest.raises(ValueError, match=r"producer state|producer .* has no batch"):
        list(ProducerStates().load(whole[: 1 + cut]))


def test_refused_producers_take_bounded_memory():
    losses = with_loss().losses
    for producer in range(REFUSED_MAX + 10):
        assert losses.judge(producer, 0, 0) is UNKNOWN
    assert len(losses._refused) == REFUSED_MAX
    assert losses.judge(0, 1, 0) is UNKNOWN, "forgotten, so it is refused once more"
    assert losses.judge(0, 2, 0) is OK


@pytest.mark.parametrize("seed", range(200))
def test_no_batch_of_the_lost_part_is_written_again(seed):
    """Seed 002: after a loss a retry is refused, whatever the producers sent before."""
    draw = Random(seed)
    states, offset = ProducerStates(), 0
    producers = [[pid, 0, 0, []] for pid in range(4)]  # id, epoch, next sequence, sent
    lost = set()

    def write(producer, into_loss):
        nonlocal offset
        if draw.random() < 0.2:
            producer[1:3] = [producer[1] + 1, 0]
        batch = (producer[0], producer[1], producer[2])
        producer[2] += 1
        producer[3].append(batch)
        if into_loss:
            lost.add(batch)
        else:
            accept(states, *batch, 1, offset)
        offset += 1

    for _ in range(draw.randrange(8)):
        write(draw.choice(producers[:3]), into_loss=False)
    for _ in range(draw.randrange(1, 8)):
        write(draw.choice(producers), into_loss=True)
    states.losses.pass_loss(offset - 1, now_ms=0)
    for producer in producers:
        pid, epoch, following, sent = producer
        # What is not acknowledged is sent again; in an older epoch all was, or was given up.
        for batch in [each for each in sent[-5:] if each[1] == epoch]:
            assert states.check(*batch, 1) is not OK or batch not in lost
        assert states.check(pid, epoch, following, 1) is UNKNOWN
        assert states.check(pid, epoch + 1, 0, 1) is OK, "it goes on"
