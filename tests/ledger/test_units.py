"""Goal: sizes, durations and the other values of flags and files are read as they are documented.

Method: tables of what is read, what is refused, and how values are shown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.command_line import units


@pytest.mark.parametrize(
    ("parse", "value", "found"),
    [
        (units.size(0, 2**50), "256MiB", 256 * 2**20),
        (units.size(0, 2**50), "1.5 GiB", 3 * 2**29),
        (units.size(0, 2**50), 4096, 4096),
        (units.size(0, 2**50), "4096", 4096),
        (units.duration(0, 1e9), "500ms", 0.5),
        (units.duration(0, 1e9), "10s", 10.0),
        (units.duration(0, 1e9), "1.5h", 5400.0),
        (units.duration(0, 1e9), "7d", 604_800.0),
        (units.duration(0, 1e9), "PT1H30M", 5400.0),
        (units.duration(0, 1e9), "P1DT0.5S", 86_400.5),
        (units.duration(0, 1e9), "0", 0.0),
        (units.duration(0, 1e9), 0, 0.0),
        (units.duration(-9, 9), "-1s", -1.0),
        (units.duration(0, 1e9, bare="s"), "1e3", 1000.0),
        (units.duration(0, 1e9, bare="ms"), ".5e3", 0.5),
        (units.duration(0, 1e9, bare="s"), "10", 10.0),
        (units.duration(0, 1e9, bare="ms"), "6000", 6.0),
        (units.duration(0, 1e9, bare="ms"), "6s", 6.0),
        (units.rate(0, 2**50), "64MiB/s", 2**26),
        (units.rate(0, 2**50), "64MiB", 2**26),
        (units.integer, "-3", -3),
        (units.percent(0, 100), "95%", 95),
        (units.percent(0, 100), 95, 95),
        (units.whole(0, 9), "7", 7),
        (units.boolean, True, True),
        (units.servers, "a:1,[::1]:2,10.0.0.1:3/x/y", "a:1,[::1]:2,10.0.0.1:3/x/y"),
        (units.rack, "/row-1/rack_2", "/row-1/rack_2"),
        (units.path, "some/where", Path("some/where")),
    ],
)
def test_values_are_read_with_their_units(parse, value, found):
    assert parse(value) == found


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (units.size(0, 9), "1.5.5MiB"),
        (units.size(0, 9), True),
        (units.size(0, 9), "-1"),
        (units.size(0, 9), ""),
        (units.size(0, 9), "10B"),
        (units.duration(0, 9), "10S"),
        (units.duration(0, 9), None),
        (units.duration(0, 9), "P"),
        (units.duration(0, 9), "PT"),
        (units.duration(0, 9), "1h30m"),
        (units.duration(0, 9), "-1s"),
        (units.duration(0, 9, bare="s"), "10S"),
        (units.duration(0, 9, bare="s"), "nan"),
        (units.duration(0, 9, bare="s"), "inf"),
        (units.duration(0, 9, bare="s"), "٧"),
        (units.duration(0, 9), "9" * 400 + "d"),
        (units.duration(0, 9), "1e3"),
        (units.duration(0, 9), "--1s"),
        (units.rate(0, 9), "1B/m"),
        (units.integer, "1.0"),
        (units.integer, ""),
        (units.percent(0, 100), "95.5%"),
        (units.percent(0, 100), 101),
        (units.whole(0, 9), "٧"),
        (units.whole(0, 9), 1.0),
        (units.boolean, "true"),
        (units.boolean, 1),
        (units.servers, "a:1,"),
        (units.servers, "a:1/"),
        (units.servers, "a:1/x//y"),
        (units.servers, "a"),
        (units.rack, "row"),
        (units.rack, "/"),
        (units.name, "-x"),
        (units.name, "a:b"),
        (units.path, "a\tb"),
        (units.path, ""),
        (units.text, 3),
    ],
)
def test_what_is_no_such_value_is_refused(parse, value):
    with pytest.raises(ValueError, match=r"must (not )?be"):
        parse(value)


@pytest.mark.parametrize(("value", "fix"), [("10", "10s"), (600, "600s"), ("-5", "5s")])
def test_a_duration_without_a_unit_is_refused_with_what_it_lacks(value, fix):
    with pytest.raises(ValueError, match=f"^{value} has no unit; write {fix}, 500ms, .*PT1H30M$"):
        units.duration(0, 9)(value)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (units.show_size(0), "0B"),
        (units.show_size(2**30), "1GiB"),
        (units.show_size(2**30 + 1), f"{2**30 + 1}B"),
        (units.show_time(0.0), "0ms"),
        (units.show_time(0.5), "500ms"),
        (units.show_time(600.0), "10m"),
        (units.show_time(172_800.0), "2d"),
        (units.show_time(90.0), "90s"),
    ],
)
def test_values_are_shown_as_people_write_them(shown, said):
    assert shown == said
