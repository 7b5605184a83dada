"""Goal: each error of the ledger tier has Kafka codes on which clients act correctly. Method: all
subclasses are looked up in the map; retryable errors must have retriable codes.
"""

import importlib
import pkgutil

import pytest
from kio.schema.errors import ErrorCode

import ledger
from gateway.errors import CODES, admin_code, coordinator_code, partition_code
from ledger.errors import (
    BadVersion,
    Fenced,
    LedgerError,
    MetadataError,
    NotEnoughBookies,
    NotOwner,
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
    """Return the errors that a broker may meet, without those of bookies and auditors alone."""
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
        assert CODES[kind].partition.retriable
        assert CODES[kind].coordinator.retriable


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_append_of_unknown_outcome_never_gets_a_code_for_not_written(kind):
    assert partition_code(kind("why"), unknown_outcome=True) is ErrorCode.not_leader_or_follower


def test_no_row_has_unknown_server_error():
    """It makes Java's idempotent producer duplicate records."""
    assert all(ErrorCode.unknown_server_error not in codes for codes in CODES.values())


def test_no_row_is_of_an_error_that_is_not_there():
    assert set(CODES) - {LedgerError} == set(ERRORS)


def test_a_subclass_without_a_row_has_the_code_of_its_kind():
    class Later(BadVersion):
        pass

    assert partition_code(Later("why")) is CODES[BadVersion].partition
    assert coordinator_code(Later("why")) is CODES[BadVersion].coordinator


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
    assert partition_code(error) is code


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_group_clients_look_for_the_coordinator_again(kind):
    lost = ErrorCode.not_coordinator
    code = lost if kind is NotOwner else ErrorCode.coordinator_not_available
    assert coordinator_code(kind("why")) is code


def test_an_error_of_another_kind_has_a_code_for_group_clients_too():
    assert coordinator_code(ValueError("why")) is ErrorCode.coordinator_not_available


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_admin_clients_look_for_the_controller_again_if_trying_again_helps(kind):
    error = kind("why")
    code = ErrorCode.not_controller if kind.retryable else partition_code(error)
    assert admin_code(error) is code
