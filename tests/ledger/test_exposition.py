"""Goal: metrics are text that Prometheus reads, whatever a label holds.

Method: families are written, and read by prometheus_client's parser.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ledger.exposition import AT_ONCE, Buckets, Declared, Families, Family, Kind, family_text
from ledger.ports.clock import SECONDS, Histogram


def read(family):
    text = b"".join(family_text(family)).decode()
    return list(text_string_to_metric_families(text)), text


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_any_label_is_read_back(labels):
    names = tuple(f"l{at}" for at in range(len(labels)))
    (found,), _ = read(Family("some", "Some \\ text\nof two lines.", names, [(tuple(labels), 1)]))
    (sample,) = found.samples
    assert tuple(sample.labels[name] for name in names) == tuple(labels)


def test_a_histogram_has_cumulative_buckets_a_sum_and_a_count():
    histogram = Histogram()
    for seconds in (0.0001, 0.0005, 0.002, 31, 100):
        histogram.add(seconds)
    value = Buckets(histogram.bounds, histogram.counts, histogram.total_s)
    (found,), _ = read(Family("x_seconds", "X.", ("api",), [(("a",), value)], Kind.HISTOGRAM))
    by_bound = {each.labels.get("le"): each.value for each in found.samples}
    assert len(SECONDS) == 14
    assert (SECONDS[0], SECONDS[-1]) == (0.0005, 30)
    assert [by_bound[le] for le in ("0.0005", "0.001", "0.0025", "30", "+Inf")] == [2, 2, 3, 3, 5]
    assert found.type == "histogram"
    sums = {each.name: each.value for each in found.samples if "le" not in each.labels}
    assert sums == {"x_seconds_sum": pytest.approx(131.0026), "x_seconds_count": 5}


def test_a_counter_and_a_gauge_have_their_types():
    (counter,), _ = read(Family("x_total", "X.", (), [((), 3)], Kind.COUNTER))
    (gauge,), _ = read(Family("y", "Y.", (), [((), 0.25)]))
    assert (counter.type, counter.samples[0].value) == ("counter", 3)
    assert (gauge.type, gauge.samples[0].value) == ("gauge", 0.25)


def test_many_samples_come_in_pieces_and_are_described_once():
    many = Family("x", "X.", ("l",), [((str(at),), at) for at in range(3 * AT_ONCE + 1)])
    assert len(list(family_text(many))) == 4
    _, text = read(many)
    assert text.count("# TYPE") == 1


def test_a_family_without_samples_is_left_out_and_labels_must_fit():
    families = Families({"a": Declared("A.", ("l",)), "b": Declared("B.")})
    families.add("b", 1)
    assert [each.name for each in families.all()] == ["b"]
    with pytest.raises(AssertionError):
        families.add("a", 1)
