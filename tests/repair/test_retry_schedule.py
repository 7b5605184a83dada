"""Goal: what failed waits twice as long each time, up to a bound. Method: calls with times."""

from ledger.repair.retry_schedule import RetrySchedule


def test_a_failed_ledger_waits_twice_as_long_each_time_up_to_the_bound():
    schedule, now_s, waits = RetrySchedule(1, 10), 0.0, []
    for _ in range(6):
        schedule.on_failed(1, now_s)
        wait_s = next(s for s in range(100) if schedule.ready([1], now_s + s))
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [1, 2, 4, 8, 10, 10]


def test_a_time_known_to_help_is_waited_for_and_does_not_count_as_a_failure():
    schedule = RetrySchedule(1, 10)
    schedule.on_failed(1, 0.0, retry_s=5.0)
    assert schedule.ready([1, 2], 4.9) == [2]
    assert schedule.ready([1, 2], 5.0) == [1, 2]
    schedule.on_failed(1, 5.0)
    assert schedule.ready([1], 6.0) == [1]


def test_what_is_no_longer_marked_is_forgotten():
    schedule = RetrySchedule(1, 10)
    schedule.on_failed(1, 0.0)
    assert schedule.ready([], 0.0) == []
    assert schedule.ready([1], 0.0) == [1]


def test_a_reset_lets_everything_be_tried_again():
    schedule = RetrySchedule(1, 10)
    schedule.on_failed(1, 0.0)
    schedule.reset()
    assert schedule.ready([1], 0.0) == [1]
