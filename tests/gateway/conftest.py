"""Fixtures that several tests of the gateway share."""

import gc

import pytest


@pytest.fixture
def no_collector():
    """Turn the collector of cycles off, so that only reference counts free an object."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
