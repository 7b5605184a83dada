"""Goal: rates, buckets and precedence of quotas are those of Apache Kafka, bit by bit.

Method: drawn histories that Kafka's own classes answered once (`tests/compat/quotas/histories.py`)
are replayed. What Kafka does by defect, and what memory depends on, has tests of its own.
"""

from __future__ import annotations

import math

from gateway.core.quota_precedence import ABSENT, ClientLimits
from gateway.core.quota_rates import INT_MAX, QuotaWindow, SampledRate, TokenBucket, bounded_ms
from tests.compat.quotas.histories import RECORDED

WINDOW = QuotaWindow()
NAMES = {"-": ABSENT, "*": None, "empty": "", "null": None}


class Replay:
    """Answers the steps of the histories as Kafka's classes did."""

    def __init__(self):
        self.window, self.bound = WINDOW, 0.0
        self.rate, self.bucket = SampledRate(), TokenBucket()
        self.rows = {}

    def begin(self, samples, seconds, bound):
        self.window = QuotaWindow(int(samples), 1000 * int(seconds))
        self.bound = float(bound)
        self.rate, self.bucket = SampledRate(), TokenBucket()

    def recorded(self, now, value, *, checks):
        now_ms = int(now)
        self.rate.record(self.window, float(value), now_ms)
        throttled = self.rate.throttle_ms(self.window, self.bound, now_ms) if checks else 0
        return throttled, self.rate.rate(self.window, now_ms)

    def taken(self, now, count, *, strict):
        now_ms, words = int(now), (self.window, self.bound)
        throttled = self.bucket.throttle_ms(*words, now_ms) if strict else 0
        if not throttled:
            self.bucket.take(*words, float(count), now_ms)
        if not strict:
            throttled = self.bucket.throttle_ms(*words, now_ms)
        return throttled, self.bucket.tokens(*words, now_ms)

    def limit(self, user, client, value):
        entity = {}
        if user != "-":
            entity["user"] = NAMES.get(user, user)
        if client != "-":
            entity["client-id"] = NAMES.get(client, client)
        if value == "-":
            self.rows.pop((user, client), None)
        else:
            self.rows[user, client] = (entity, float(value))

    def find(self, user, client):
        found = ClientLimits(self.rows.values()).find(user, NAMES.get(client, client))
        if found is None:
            return "none"
        return f"{found.value} {found.sharers[0] or '-'} {found.sharers[1] or '-'}"

    def answer(self, step):
        kind, *words = step.split(" ")
        match kind:
            case "rate" | "bucket":
                self.begin(*words)
            case "bound":
                self.bound = float(words[0])
            case "record" | "note":
                return self.recorded(*words, checks=kind == "record")
            case "strict" | "permissive":
                return self.taken(*words, strict=kind == "strict")
            case "limits":
                self.rows = {}
            case "limit":
                self.limit(*words)
            case "find":
                return self.find(*words)
        return ""


def expected(text):
    words = text.split(" ")
    if len(words) != 2:
        return text
    return min(int(words[0]), INT_MAX), float.fromhex(words[1])


def test_every_answer_is_that_of_kafkas_classes():
    replay, differ, kinds = Replay(), [], set()
    for number, line in enumerate(RECORDED.read_text().splitlines(), 1):
        step, _, answer = line.partition("\t")
        kinds.add(step.split(" ")[0])
        got = replay.answer(step)
        if got != expected(answer):
            differ.append((number, step, answer, got))
    assert differ == []
    assert kinds == {
        *("rate", "bucket", "bound", "record", "note", "strict", "permissive"),
        *("limits", "limit", "find"),
    }


def test_a_rate_that_recorded_nothing_for_a_window_equals_a_new_one():
    used, new = SampledRate(), SampledRate()
    for second in range(30):
        used.record(WINDOW, 500.0, 1_000 * second + 17)
    begun_ms = used.used_ms + WINDOW.all_ms
    for step in range(40):
        now_ms = begun_ms + 377 * step
        for each in (used, new):
            each.record(WINDOW, 10.0 * step, now_ms)
        assert used.throttle_ms(WINDOW, 40.0, now_ms) == new.throttle_ms(WINDOW, 40.0, now_ms)
        assert used.rate(WINDOW, now_ms) == new.rate(WINDOW, now_ms)


def test_a_client_without_an_id_has_the_limit_of_its_user_only():
    rows = [({"user": None}, 1.0), ({"client-id": None}, 2.0)]
    assert ClientLimits(rows).find("bob", None) == (("bob", ABSENT), 1.0)
    assert ClientLimits(rows[1:]).find("bob", None) is None
    assert ClientLimits([({"user": "bob", "client-id": None}, 3.0)]).find("bob", None) is None


def test_times_fit_into_a_reply_and_halves_are_rounded_up():
    assert [bounded_ms(value) for value in (0.49, 0.5, 1.5, 2.4999)] == [0, 1, 2, 2]
    assert bounded_ms(0.49999999999999994) == 0
    assert bounded_ms(math.nan) == bounded_ms(-3.0) == 0
    assert bounded_ms(1e30) == bounded_ms(math.inf) == INT_MAX


def test_a_new_bucket_is_full():
    bucket = TokenBucket()
    assert bucket.tokens(WINDOW, 5.0, 1_700_000_000_000) == 55.0
