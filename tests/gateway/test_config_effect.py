"""Goal: what a setting does to segments is said as the ledger does it, and as people read it.

Method: random chains of segments against the function that removes them; texts by example.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.configs import broker, has_effect, topic
from gateway.core.config_effect import (
    TOPIC_KEYS_WITH_EFFECT,
    Fate,
    Removal,
    Retention,
    RollRules,
    SegmentFacts,
    Subject,
    cleaning_text,
    open_bytes,
    removal_texts,
    removals,
    roll_text,
    show_ms,
    subject_of,
)
from gateway.topics.configs import TOPIC_KEYS
from tests.house import ROOT
from tests.ledger.segment_chains import streams
from tests.ledger.test_segment_table import table_of

HOUR_MS = 3_600_000


def facts_of(segment, size_bytes):
    return SegmentFacts(
        number=segment.number,
        ledger=segment.ledger,
        first_offset=segment.start_sequence_id,
        end_offset=segment.end_sequence_id if segment.completed else None,
        size_bytes=size_bytes if segment.completed else None,
        created_ms=0,
        completed_ms=segment.completion_ms if segment.completed else None,
        empty=segment.completed and segment.last_entry < 0,
    )


@given(streams(), st.data(), st.integers(0, 2000), st.integers(-1, 1000), st.integers(-1, 100))
def test_segments_go_now_and_later_as_retention_removes_them(stream, data, now_ms, ms, bytes_max):
    sizes = [data.draw(st.integers(0, 30)) for _ in stream]
    in_progress = sum(size for s, size in zip(stream, sizes, strict=True) if not s.completed)
    facts = [facts_of(s, size) for s, size in zip(stream, sizes, strict=True)]
    found = removals(facts, Retention(ms, bytes_max, True), now_ms, in_progress)
    table = table_of(stream, sizes=sizes)

    def removed(at_ms):
        return table.expired(now_ms=at_ms, ttl_ms=ms, bytes_max=bytes_max)

    assert [each.fate for each in found].count(Fate.now) == removed(now_ms)
    for at, each in enumerate(found):
        if each.fate is Fate.later and each.at_ms is not None:
            assert removed(each.at_ms - 1) <= at < removed(each.at_ms)
        if each.fate is Fate.kept:
            assert removed(2**61) <= at


def chain(*completed_ms, in_progress=True):
    """Segments of 100 bytes that were completed at these times."""
    found = [
        SegmentFacts(at, at, 10 * at, 10 * at + 10, 100, at_ms - 50, at_ms)
        for at, at_ms in enumerate(completed_ms, 1)
    ]
    if in_progress:
        after = len(found) + 1
        found.append(SegmentFacts(after, after, 10 * after, None, None, HOUR_MS, None))
    return found


def test_what_goes_now_and_the_next_one_are_named():
    found = removals(chain(0, 1000, 2 * HOUR_MS, 3 * HOUR_MS), rules := days(ms=HOUR_MS), NOW, 7)
    assert [each.fate for each in found] == [
        *(Fate.now, Fate.now, Fate.later, Fate.newest, Fate.open)
    ]
    assert list(removal_texts(found, rules, NOW)) == [
        "2 segments with 200 bytes go now",
        "segment 3 is the next: it goes in 30 min by retention.ms",
    ]


NOW = 2 * HOUR_MS + HOUR_MS // 2


def days(ms=-1, bytes=-1, deletes=True):
    return Retention(ms, bytes, deletes)


def test_bytes_that_are_missing_are_counted():
    found = removals(chain(0, 1), rules := days(bytes=150), NOW, 7)
    assert list(removal_texts(found, rules, NOW)) == [
        "segment 1 is the next: it goes after 43 more bytes by retention.bytes"
    ]
    found = removals(chain(0, 1), rules := days(bytes=107), NOW, 7)
    assert list(removal_texts(found, rules, NOW)) == ["1 segment with 100 bytes go now"]
    assert found[0].text(NOW) == "goes now by retention.bytes"


@pytest.mark.parametrize(
    ("segments", "rules", "text"),
    [
        (chain(0, 1), days(), "neither retention.ms nor retention.bytes has a limit"),
        (chain(0, 1), days(ms=1, deletes=False), "cleanup.policy has no delete"),
        (chain(), days(ms=1), "no completed segment can go"),
        (chain(1), days(ms=1), "no completed segment can go"),
    ],
)
def test_why_nothing_goes(segments, rules, text):
    found = removals(segments, rules, NOW, 0)
    (sentence,) = removal_texts(found, rules, NOW)
    assert text in sentence


def test_a_truncated_segment_is_shown_as_such():
    first, *rest = chain(0, 1)
    found = removals([first._replace(truncated=True), *rest], days(ms=1), NOW, 0)
    assert found[0] == Removal(first._replace(truncated=True), Fate.truncated)


ROLL = RollRules(HOUR_MS, 1000, HOUR_MS // 20)


@pytest.mark.parametrize(
    ("in_progress", "end", "open_now", "text"),
    [
        (False, 30, 0, "no segment is in progress"),
        (True, 20, 0, "segment 2 has no records, and rolls only with some"),
        (True, 30, 400, "segment 2 rolls now (segment.ms), or after 600 more bytes"),
        (True, 30, 1400, "or with the next record"),
    ],
)
def test_when_the_segment_in_progress_rolls(in_progress, end, open_now, text):
    newest = chain(0)[-1] if in_progress else None
    rules = ROLL._replace(jitter_ms_max=0)
    assert text in roll_text(newest, rules, NOW, open_now, end)


def test_the_jitter_of_a_roll_is_a_range():
    text = roll_text(chain(0)[-1], ROLL, HOUR_MS + 60_000, 10, 30)
    assert text.startswith("segment 2 rolls in 59 min to 1 h 2 min (segment.ms), or after 990")


def test_the_bytes_in_progress_are_what_is_stored_beyond_the_completed():
    segments = [each._replace(copies=3) for each in chain(0, 1)]
    assert open_bytes(segments, 3 * 200 + 3 * 50) == 50
    assert open_bytes(segments, None) == open_bytes(segments[:2], 999) == open_bytes([], 9) == 0


@pytest.mark.parametrize(
    ("ratio", "compacts", "text"),
    [(0.6, True, "cleaned next"), (0.2, True, "cleaned above 50%"), (0.6, False, "no compact")],
)
def test_how_dirty_a_log_is(ratio, compacts, text):
    assert text in cleaning_text(ratio, 1, 0.5, compacts)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0 s"), (1, "1 ms"), (61_000, "1 min 1 s"), (86_400_000, "1 d"), (90_061_000, "1 d 1 h")],
)
def test_durations_have_two_units(ms, text):
    assert show_ms(ms) == text


def test_the_settings_with_an_effect_are_those_that_a_gateway_reads():
    source = (ROOT / "gateway/topics/configs.py").read_text().split("def topic_config(")[1]
    read = set(re.findall(r'(?:value|number)\("([a-z.]+)"\)', source))
    read |= {f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
    assert read == TOPIC_KEYS_WITH_EFFECT
    assert {key for key in TOPIC_KEYS if subject_of(key) is not None} == TOPIC_KEYS_WITH_EFFECT
    assert subject_of("retention.ms") is Subject.removal


def test_a_default_of_brokers_acts_if_its_topic_setting_does():
    assert has_effect("log.retention.ms", broker(None), "default")
    assert not has_effect("log.flush.interval.ms", broker(None), "cluster")
    assert has_effect("listeners", broker(1), "start")
    assert not has_effect("flush.ms", topic("t"), "topic")
