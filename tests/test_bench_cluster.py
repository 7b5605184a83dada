"""Goal: the line of `make bench-cluster` gives the worst ratio of all runs; null: it did not run.

Method: figures by hand, for two runs, as the parts of the bench would have left them.
"""

from __future__ import annotations

from tests.bench.cluster.report import Run, summary

FIRST_KEYS = [
    "bench",
    "produce_100_vs_synced",
    "produce_1024_vs_synced",
    "produce_100_vs_default",
    "produce_1024_vs_default",
    "cpu_100_vs_synced",
    "cpu_1024_vs_synced",
    "read_100",
    "read_1024",
    "read_far_100",
    "read_far_1024",
    "read_cpu_worst",
    "memory",
]


def produced(records_per_s: float, cpu_s_per_gb: float, memory_mb: float) -> dict[str, float]:
    return {
        "records_per_s": records_per_s,
        "cpu_s_per_gb": cpu_s_per_gb,
        "memory_mb": memory_mb,
        "others_share": 0.1,
    }


def two_runs() -> list[Run]:
    return [
        {
            "ours": {"produce 100": produced(300, 20, 90)},
            "kafka-synced": {"produce 100": produced(100, 40, 100)},
            "kafka": {"produce 100": produced(200, 10, 90)},
        },
        {
            "ours": {"produce 100": produced(200, 30, 50)},
            "kafka-synced": {"produce 100": produced(100, 40, 100)},
            "kafka": {"produce 100": produced(400, 60, 100)},
        },
    ]


def test_a_rate_counts_at_its_lowest_ratio_and_a_cost_at_its_highest() -> None:
    line = summary(two_runs(), [])
    assert (line["produce_100_vs_synced"], line["produce_100_vs_default"]) == (2.0, 0.5)
    assert (line["cpu_100_vs_synced"], line["cpu_100_vs_default"]) == (0.75, 2.0)


def test_memory_is_compared_over_the_loads_that_both_sides_had() -> None:
    runs = two_runs()
    assert summary(runs, [])["memory"] == 1.0
    runs[0]["ours"]["far 100-1"] = produced(1, 1, 900)
    assert summary(runs, [])["memory"] == 1.0
    runs[0]["kafka"]["far 100-1"] = produced(1, 1, 450)
    assert summary(runs, [])["memory"] == 2.0


def test_what_did_not_run_is_null_and_failures_are_named() -> None:
    line = summary(two_runs(), ["kafka far: too slow"])
    assert line["read_far_100"] is None
    assert line["failed"] == ["kafka far: too slow"]


def test_the_line_begins_with_the_figures_that_judge() -> None:
    assert list(summary(two_runs(), []))[: len(FIRST_KEYS)] == FIRST_KEYS


def test_a_figure_of_several_loads_is_the_worst_of_them() -> None:
    runs: list[Run] = [
        {
            "ours": {"written 100-1": produced(90, 3, 1), "behind 100-6": produced(50, 9, 1)},
            "kafka": {"written 100-1": produced(100, 2, 1), "behind 100-6": produced(100, 2, 1)},
        }
    ]
    line = summary(runs, [])
    assert (line["read_100"], line["read_cpu_worst"]) == (0.5, 4.5)


def test_the_other_tree_has_ratios_of_its_own() -> None:
    (run, _) = two_runs()
    run["before"] = {"produce 100": produced(150, 40, 90)}
    assert summary([run], [])["vs_before"] == {
        "produce 100": {"records_per_s": 2.0, "cpu_s_per_gb": 0.5, "memory_mb": 1.0}
    }


def test_a_machine_that_slows_down_within_a_run_is_reported() -> None:
    runs = two_runs()
    assert summary(runs, [])["core_speed_at_least"] is None
    for side, step_ns in {"ours": 40.0, "kafka-synced": 50.0, "kafka": 80.0}.items():
        runs[0][side]["produce 100"]["step_ns"] = step_ns
    runs[1]["ours"]["produce 100"]["step_ns"] = 160.0
    assert summary(runs, [])["core_speed_at_least"] == 0.5
