"""Goal: a plot shows every point of a history at its place, and a gap where there is none.

Method: histories by Hypothesis, drawn and read back from the drawing; hand-made ones for words and
rows; a template with marks that are filled, also with hostile titles and names.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from gateway.http import plots
from gateway.http.pages import Asked, Refused
from gateway.http.plots import BOTTOM, HEIGHT, LEFT, LINES_MAX, RIGHT, TOP, WIDTH, plot_of
from tests.gateway.drawn_page import Tags, Templates

AT_MS = 1_777_550_400_000  # 2026-04-30 12:00 UTC
ASKED = Asked({}, {}, "User:ANONYMOUS")
MARK = f"<!--{'0' * 32} 0-->"
POINTS = st.lists(st.none() | st.floats(0, 1e12), max_size=50)


def history(*lines, unit="records/s", step_s=10):
    named = [{"name": f"line {at}", "points": points} for at, points in enumerate(lines)]
    return {"series": "x", "unit": unit, "step_s": step_s, "from_ms": AT_MS, "lines": named}


def places(line):
    """All points of a line, from its runs and dots, by their place from left to right."""
    runs = [tuple(map(float, pair.split(","))) for run in line.runs for pair in run.split()]
    return sorted([*runs, *line.dots])


@given(POINTS)
def test_every_point_is_drawn_at_its_place_and_no_other(points):
    plot = plot_of(history(points))
    known = {at: value for at, value in enumerate(points) if value is not None}
    if not known:
        assert plot.lines == []
        return
    drawn = places(plot.lines[0])
    assert len(drawn) == len(known)
    width = WIDTH - LEFT - RIGHT
    top = plot.up[0].at - plot.up[-1].at
    highest = plots.nice_ticks(max(known.values()))[-1]
    for (x, y), (at, value) in zip(drawn, known.items(), strict=True):
        assert x == pytest.approx(LEFT + width * at / max(1, len(points) - 1), abs=0.06)
        assert plot.up[0].at - y == pytest.approx(top * value / highest, abs=0.11)


@given(POINTS)
def test_a_gap_ends_a_run(points):
    plot = plot_of(history(points))
    gaps = "".join("." if point is None else "x" for point in points)
    runs = [len(run) for run in re.findall("x+", gaps)]
    found = plot.lines[0] if plot.lines else plots.Line("", [], [])
    assert [len(run.split()) for run in found.runs] == [length for length in runs if length > 1]
    assert len(found.dots) == runs.count(1)


@given(st.floats(0, 1e15), st.booleans(), st.booleans())
def test_ticks_begin_at_zero_reach_the_highest_point_and_are_few(highest, binary, whole):
    ticks = plots.nice_ticks(highest, binary=binary, whole=whole)
    assert ticks[0] == 0
    assert 3 <= len(ticks) <= 6
    assert ticks[-1] >= highest * (1 - 1e-9)
    steps = {round((b - a) / ticks[1], 6) for a, b in pairwise(ticks)}
    assert steps == {1.0}
    mantissa = math.log2(ticks[1]) if binary else math.log10(ticks[1])
    nice = {0.0} if binary else {0.0, math.log10(2), math.log10(2.5), math.log10(5)}
    assert any(abs((mantissa - each + 0.5) % 1 - 0.5) < 1e-6 for each in nice)


def test_ticks_of_bytes_have_binary_units_and_others_thousands():
    ticks = plot_of(history([3 * 1024**2], unit="bytes/s")).up
    assert [tick.words for tick in ticks] == ["0 B/s", "1 MiB/s", "2 MiB/s", "3 MiB/s"]
    ticks = plot_of(history([8_000], unit="records/s")).up
    assert [tick.words for tick in ticks] == ["0 /s", "2 k/s", "4 k/s", "6 k/s", "8 k/s"]
    ticks = plot_of(history([1_600], unit="ms")).up
    assert [tick.words for tick in ticks] == ["0 ms", "500 ms", "1 s", "1.5 s", "2 s"]


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (5, ["12:00", "12:01", "12:02", "12:03", "12:04", "12:05"]),
        (60, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (1_440, ["12:00", "18:00", "00:00", "06:00", "12:00"]),
    ],
)
def test_times_are_at_round_places_of_the_clock(minutes, words):
    plot = plot_of(history([1] * (minutes + 1), step_s=60))
    assert [tick.words for tick in plot.across] == words
    assert plot.across[0].at == LEFT
    assert plot.across[-1].at == WIDTH - RIGHT


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (172_799, "s", "172,799 s"),
        (172_800, "s", "2 d"),
        (15_000_000, "s", "174 d"),
        (15_000_000_000, "ms", "174 d"),
        (999, "ms", "999 ms"),
        (1_500, "ms", "1.5 s"),
    ],
)
def test_a_long_time_is_in_days_because_an_axis_has_no_room_for_its_seconds(value, unit, words):
    assert plots.value_text(value, unit) == words


def test_a_peak_of_a_long_history_stays_visible():
    points = [1.0] * 1_440
    points[777] = 50.0
    plot = plot_of(history(points, step_s=60))
    drawn = places(plot.lines[0])
    assert len(drawn) <= 2 * 400
    assert min(y for _, y in drawn) == plots._y(50.0, 60.0)


def test_a_gap_of_a_long_history_stays_a_gap():
    points = [1.0] * 700 + [None] * 40 + [1.0] * 700
    assert len(plot_of(history(points, step_s=60)).lines[0].runs) == 2


def test_what_is_no_finite_number_is_a_gap():
    plot = plot_of(history([1.0, float("nan"), "<b>", float("inf"), 2.0]))
    assert [at for at, _ in places(plot.lines[0])] == [LEFT, WIDTH - RIGHT]


def test_the_table_has_the_mean_of_what_is_known_newest_first():
    points = [None, 1.0, 3.0, 5.0] + [None] * 56
    plot = plot_of(history(points))
    assert len(plot.rows) == 30
    assert plot.row_ms == 20_000
    assert [row.means for row in plot.rows[-3:]] == [[None], [4.0], [1.0]]
    assert plot.rows[-1].at_ms == AT_MS


def test_only_lines_that_can_be_told_apart_are_drawn_and_the_others_counted():
    plot = plot_of(history(*([[1.0, 2.0]] * 9)))
    assert (len(plot.lines), plot.more) == (LINES_MAX, 3)


def test_the_summary_says_what_the_lines_show():
    plot = plot_of(history([1.0, 40.0, 20.0], [None, None, None], [3.0, None, None], unit="ms"))
    assert plot.summary == (
        "line 0: last 20 ms, lowest 1 ms, highest 40 ms; line 1: no data; "
        "line 2: none now, lowest 3 ms, highest 3 ms"
    )


# -- the marks of a page --------------------------------------------------------------------------


PAGE = '{% import "_macros.html" as ui %}<main>{{ ui.plot(title, unit, href) }}{{ more }}</main>'


def drawn_page(answer, title="Bytes", unit="bytes/s", href="/h?series=bytes_in", page=PAGE):
    """Draw a page with one plot, whose history `answer` returns. Returns it and what was asked."""
    asked = []

    async def shown(path, request):
        asked.append((path, dict(request.query)))
        return answer()

    text = Templates(page, shown).drawn(ASKED, title=title, unit=unit, href=href, more=MARK)
    return text, asked


def test_a_plot_is_drawn_with_title_description_and_table():
    answer = history([1.0, None, 3.0, 2.0], unit="bytes/s")
    text, asked = drawn_page(lambda: answer)
    assert asked == [("/h", {"series": "bytes_in"})]
    tags = Tags(text)
    assert tags.bad == []
    assert {"svg", "title", "desc", "polyline", "circle", "details", "table"} <= set(tags.names)
    assert "line 0: last 2 B/s, lowest 1 B/s, highest 3 B/s" in text


def test_hostile_names_and_titles_stay_text():
    hostile = "<script>alert(1)</script>"
    answer = history([1.0, 2.0], [2.0, 1.0])
    answer["lines"][0]["name"] = hostile
    text, _ = drawn_page(lambda: answer, title=hostile, unit=hostile, href=hostile)
    assert "script" not in Tags(text).names
    assert "".join(Tags(text).words).count(hostile) >= 4


def test_a_value_that_looks_like_a_mark_stays_text():
    text, asked = drawn_page(lambda: history([1.0, 2.0]))
    assert len(asked) == 1
    assert text.count("<polyline") == 1
    assert escape(MARK) in text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: history([None, None]), "No data yet"),
        (lambda: {"rows": []}, "No data: this gateway keeps no such history."),
    ],
)
def test_a_plot_without_points_says_so(answer, words):
    text, _ = drawn_page(answer)
    assert words in text
    assert "svg" not in Tags(text).names


def test_a_history_that_is_refused_shows_the_reason():
    def refuse():
        raise Refused(403, "TOPIC_AUTHORIZATION_FAILED", "not authorized: <b>")

    assert "No data: not authorized: &lt;b&gt;." in drawn_page(refuse)[0]


def test_each_plot_of_a_page_has_names_of_its_own():
    text, _ = drawn_page(lambda: history([1.0, 2.0]), page=PAGE + PAGE.replace("main", "div"))
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) == 4


def test_the_drawing_leaves_room_for_its_ticks():
    assert LEFT + RIGHT < WIDTH / 2
    assert TOP + BOTTOM < HEIGHT / 2
