"""Goal: the judge of the proofs on Spark finds every kind of difference from the CSV.

Method: the first flights as an archive or a copy would hold them, and then with one fault each.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas
import pytest

from tests.pipelines.proof_judges import differences, frame, originals, summary_differences

pytestmark = pytest.mark.proof

COUNT = 300
PARTITIONS = 3


def stored() -> pandas.DataFrame:
    """Return the flights with the partition of their carrier, and their offsets in it."""
    wanted = originals(COUNT)
    carriers = sorted(wanted["key"].unique())
    wanted["partition"] = wanted["key"].map(carriers.index) % PARTITIONS
    wanted["offset"] = wanted.groupby("partition").cumcount()
    return wanted


def changed(column: str, value: object) -> Callable[[pandas.DataFrame], pandas.DataFrame]:
    def change(table: pandas.DataFrame) -> pandas.DataFrame:
        table.loc[7, column] = value
        return table

    return change


def swapped(table: pandas.DataFrame) -> pandas.DataFrame:
    """Exchange the offsets of two records of one partition."""
    one, other = table.index[table["partition"] == 0][:2]
    table.loc[[one, other], "offset"] = table.loc[[other, one], "offset"].to_numpy()
    return table


FAULTS = {
    "a record is missing": lambda table: table.drop(7),
    "the last record is missing": lambda table: table.drop(COUNT - 1),
    "a record is there twice": lambda table: pandas.concat([table, table.loc[[7]]]),
    "a record is there twice, at the end": lambda table: pandas.concat(
        [table, table.loc[[7]].assign(offset=COUNT)]
    ),
    "two records are exchanged": swapped,
    "a record is in another partition": changed("partition", PARTITIONS),
    "a value is another": changed("value", b"2013,1,1"),
    "a key is another": changed("key", b"??"),
    "a time is another": changed("ms", 0),
}


def test_the_flights_of_the_csv_in_their_order_have_no_difference() -> None:
    assert differences(stored(), originals(COUNT)) == 0
    assert differences(stored().sample(frac=1, random_state=1), originals(COUNT)) == 0
    assert summary_differences(stored(), COUNT) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault: str) -> None:
    assert differences(FAULTS[fault](stored()), originals(COUNT)) > 0


def test_a_missing_flight_changes_the_summary_of_its_carrier() -> None:
    assert summary_differences(stored().drop(7), COUNT) > 0


def test_records_become_a_table() -> None:
    table = frame([((1, 5), (b"UA", b"2013,1,1", 9))])
    assert table.to_dict("records") == [
        {"partition": 1, "offset": 5, "key": b"UA", "value": b"2013,1,1", "ms": 9}
    ]
