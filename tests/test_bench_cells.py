"""Goal: a bench reports its worst ratio. Method: runs with figures that are made up."""

from tests.bench.cells import Run, own_ratios, table, worst_cells, worst_of_parts


def made(ours, theirs):
    run = Run()
    for side, cells in (("gateway", ours), ("kafka", theirs)):
        for cell, figures in cells.items():
            run.add(side, cell, figures)
    return run


def test_of_several_runs_the_worst_counts():
    theirs = {"fsync 1": {"records_per_s": 10.0, "cpu": 10.0}}
    runs = [
        made({"fsync 1": {"records_per_s": 20.0, "cpu": 1.0}}, theirs),
        made({"fsync 1": {"records_per_s": 5.0, "cpu": 4.0}}, theirs),
    ]
    assert worst_cells(runs) == {"fsync 1": {"records_per_s": 0.5, "cpu": 0.4}}


def test_a_part_has_the_worst_of_its_cells():
    cells = {"fsync 1": {"cpu": 0.4}, "fsync 6": {"cpu": 0.9}, "nosync 1": {"cpu": 2.0}}
    assert worst_of_parts(cells) == {"fsync_cpu": 0.9, "nosync_cpu": 2.0}


def test_figures_of_one_side_have_no_ratio():
    run = made({"fsync 1": {"cpu": 4.0, "p99_ms": 3.0}, "commits": {"p99_ms": 3.0}}, {})
    assert worst_cells([run]) == {}
    run.add("kafka", "fsync 1", {"cpu": 2.0, "p99_ms": 0.0})
    assert worst_cells([run])["fsync 1"] == {"cpu": 2.0}
    assert "fsync 1: cpu 4 / 2 = 2, p99_ms 3 / 0 = -" in table([run])


def test_counts_are_shown_and_not_compared():
    run = made({"commits": {"lost_count": 4, "cpu": 1}}, {"commits": {"lost_count": 2, "cpu": 2}})
    assert worst_cells([run]) == {"commits": {"cpu": 0.5}}
    assert table([run]) == "commits: lost_count 4 / 2 = -, cpu 1 / 2 = 0.5"


def test_of_our_own_ratios_the_largest_counts():
    runs = [
        made({"reads 1": {"time_ratio": 1.5, "cpu": 9.0}, "reads 2": {"time_ratio": 1.25}}, {}),
        made({"reads 1": {"time_ratio": 1.0}}, {"reads 1": {"time_ratio": 4.0}}),
    ]
    assert own_ratios(runs) == {"time_ratio": 1.5}
