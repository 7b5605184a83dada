"""Goal: every error of the ledger tier has one honest Kafka code. Method: all subclasses there are,
against the map and against what clients may retry."""

import importlib
import pkgutil

import pytest
from kio.schema.errors import ErrorCode

import ledger
from gateway.errors import CODES, code_for
from ledger.errors import (
    BadVersion,
    Fenced,
    LedgerError,
    MetadataError,
    NotEnoughBookies,
    StorageFull,
    StreamUnavailable,
    Truncated,
)

WITHIN_REACH = (
    "ledger.errors",
    "ledger.client.",
    "ledger.streams.",
    "ledger.ports.",
    "ledger.adapters.",
)


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def all_errors():
    """Those that a gateway may meet; what only bookies and auditors raise stays there."""
    for module in pkgutil.walk_packages(ledger.__path__, "ledger."):
        if not module.name.endswith("_pb2"):
            importlib.import_module(module.name)
    return sorted(
        {each for each in subclasses(LedgerError) if each.__module__.startswith(WITHIN_REACH)},
        key=lambda each: each.__name__,
    )


ERRORS = all_errors()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_it_has_a_row_of_its_own(kind):
    assert kind in CODES


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_what_may_be_tried_again_has_a_code_that_clients_try_again(kind):
    if kind.retryable:
        assert CODES[kind].retriable


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_append_of_unknown_outcome_never_says_not_written(kind):
    assert code_for(kind("why"), unknown_outcome=True) is ErrorCode.not_leader_or_follower


def test_no_row_says_unknown_server_error():
    """It makes Java's idempotent producer double its records."""
    assert ErrorCode.unknown_server_error not in CODES.values()


def test_no_row_is_of_an_error_that_is_not_there():
    assert set(CODES) - {LedgerError} == set(ERRORS)


def test_a_subclass_without_a_row_has_the_code_of_its_kind():
    class Later(BadVersion):
        pass

    assert code_for(Later("why")) is CODES[BadVersion]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Fenced("taken over"), ErrorCode.not_leader_or_follower),
        (StreamUnavailable("opening"), ErrorCode.not_leader_or_follower),
        (NotEnoughBookies("one is gone"), ErrorCode.not_enough_replicas),
        (StorageFull("no room"), ErrorCode.kafka_storage_error),
        (Truncated("below the start"), ErrorCode.offset_out_of_range),
        (MetadataError("?"), ErrorCode.kafka_storage_error),
    ],
)
def test_the_codes_that_clients_act_upon(error, code):
    assert code_for(error) is code
