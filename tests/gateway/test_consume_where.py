"""Goal: `--where` keeps the records for which an expression is true, and survives costly ones.

Method: the filter with its process, on records in memory; and what the process computes, in this
one.
"""

from __future__ import annotations

import asyncio

import cel
import pytest

from gateway.admin import consume_where
from gateway.admin.bad_input import BadInput
from gateway.admin.consume_batches import PlainRecord
from gateway.admin.consume_where import CelMissing, InvalidExpression, Where
from gateway.admin.where_process import FAILED, MATCH, NO_MATCH, WRONG, evaluate, variables

pytestmark = pytest.mark.process


def rec(offset, value, key=None, headers=(), timestamp=1000):
    return PlainRecord(offset, timestamp, 0, key, value, headers)


RECORDS = [
    rec(0, b'{"total": 120, "tags": ["a", "b"]}', b"ann"),
    rec(1, b'{"total": 5}', b'{"region": "eu"}'),
    rec(2, b"text", b"7", [("trace", b"a1"), ("trace", b"a2"), ("none", None)]),
    rec(3, None, b"\xff"),
    rec(4, b"\xff", timestamp=-1),
    rec(5, b"100.5"),
]


def verdicts(expression, records=RECORDS):
    """As the process computes them."""
    program = cel.compile(expression)
    rows = [
        (
            *(each.offset, None if each.timestamp < 0 else each.timestamp),
            *(each.key, -1 if each.key is None else len(each.key)),
            *(each.value, -1 if each.value is None else len(each.value)),
            each.headers,
        )
        for each in records
    ]
    used = {name: get for name, get in variables().items() if name in program.variables()}
    return evaluate(program.execute, used, "t", 3, rows)


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        ("value.total > 100", [0]),
        ("value.total >= 5 && value.total < 120.5", [0, 1]),
        ("'b' in value.tags", [0]),
        ("value.tags.exists(tag, tag == 'a')", [0]),
        ("has(value.tags)", [0]),
        ("value == 'text'", [2]),
        ("value == null", [3]),
        ("value == b'\\xff'", [4]),
        ("value > 100", [5]),
        ("key == 'ann' || key == '7'", [0, 2]),
        ("key.region == 'eu'", [1]),
        ("key == null", [4, 5]),
        ("headers.trace == 'a2' && headers['none'] == null", [2]),
        ("topic == 't' && partition == 3 && offset < 2", [0, 1]),
        ("timestamp == 1000 && time == timestamp('1970-01-01T00:00:01Z')", [0, 1, 2, 3, 5]),
        ("timestamp == null && time == null", [4]),
        ("value_size == -1 || key_size == -1", [3, 4, 5]),
    ],
)
def test_an_expression_sees_the_parts_of_a_record(expression, offsets):
    found, _ = verdicts(expression)
    assert [at for at, verdict in enumerate(found) if verdict == MATCH] == offsets


def test_a_record_without_the_field_fails_and_a_result_that_is_no_bool_is_wrong():
    found, reason = verdicts("value.total > 100")
    assert list(found) == [MATCH, NO_MATCH, FAILED, FAILED, FAILED, FAILED]
    assert reason.startswith("No such overload")
    assert verdicts("headers.x == ''") == (bytes([FAILED] * 6), "no such key: 'x'")
    assert verdicts("value_size") == (
        bytes([WRONG]),
        "the result is 34, not true or false",
    )
    assert verdicts("no(value)")[1] == "Undefined variable or function: 'no'"


def filtered(expression, records=RECORDS):
    async def work():
        return [each.offset for each in await where.matching("t", 0, records)]

    where = Where(expression)
    try:
        return asyncio.run(work()), where.summary()
    finally:
        where.close()


def test_the_process_counts_what_failed_and_keeps_the_first_reason():
    found, summary = filtered("value.total > 100")
    assert found == [0]
    assert summary.startswith("--where failed for 4 records, not printed; the first is t/0@2: ")
    with pytest.raises(BadInput, match=r"^--where: t/0@0: the result is 120, not true or false$"):
        filtered("value.total")


def test_many_records_are_filtered_in_pieces_and_large_ones_are_left_out():
    small = [rec(at, b'{"n": %d}' % at) for at in range(3000)]
    large = rec(3000, b'{"n": 0, "x": "%s"}' % (b"a" * 2**20))
    found, summary = filtered("value.n % 2 == 0", [*small, large])
    assert found == list(range(0, 3000, 2))
    assert summary == (
        "--where failed for 1 record, not printed; the first is t/0@3000: "
        f"the record has {len(large.value)} bytes, and --where takes at most 1MiB"
    )
    assert filtered("value_size > 1000", [large]) == ([3000], "")


def test_a_process_that_ends_again_while_it_compiles_is_an_error(monkeypatch):
    where = Where("value.total > 100")
    try:
        monkeypatch.setattr(consume_where, "_MODULE", "gateway.admin.none")
        where._child.kill()
        with pytest.raises(BadInput, match="ended while it compiled the expression again") as error:
            asyncio.run(where.matching("t", 0, RECORDS))
    finally:
        where.close()
    assert (error.value.code, error.value.exit_code) == ("WHERE_FAILED", 1)


@pytest.mark.slow
def test_a_record_that_costs_too_much_is_left_out_and_the_others_are_not():
    costly = b"[" + b",".join([b"1"] * 50_000) + b"]"
    records = [rec(1, costly), rec(2, b"[1, 1]")]
    found, summary = filtered("value.all(a, value.all(b, a == b))", records)
    assert found == [2]
    assert summary.endswith("t/0@1: the expression needs more than 1 s of CPU time")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "column 1: mismatched input '<EOF>'"),
        ("value.total >", "column 14: mismatched input '<EOF>'"),
        ("value.total\n> > 1", "line 2 column 3: extraneous input '>'"),
        ("valeu.total > 1", "column 1: no variable valeu; there are topic, partition, offset"),
        ("value.all(x, y > 1)", "column 14: no variable y"),
        ("(" * 4000 + "true" + ")" * 4000, "column 97: Recursion limit of 96 exceeded"),
        ("a" * 10_001, "has more than 10000 characters"),
    ],
)
def test_a_bad_expression_is_refused_with_its_place(expression, reason):
    with pytest.raises(InvalidExpression) as refused:
        Where(expression)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_extra_is_named_if_cel_is_missing(monkeypatch):
    monkeypatch.setattr("gateway.admin.consume_where.find_spec", lambda _: None)
    with pytest.raises(CelMissing, match="pip install 'common-expression-language>="):
        Where("true")
