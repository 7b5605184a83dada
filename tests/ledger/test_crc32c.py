"""Goal: our CRC-32C is that of the package, without the package's own start.

Method: the check value of the algorithm, any bytes beside the package, and what an import loads.
"""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from ledger.crc32c import crc32c


def test_it_has_the_check_value_of_the_algorithm():
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_it_is_the_packages_in_one_piece_or_in_several(head, tail):
    whole = package.crc32c(head + tail)
    assert crc32c(memoryview(head + tail)) == crc32c(tail, crc32c(head)) == whole


def test_the_package_itself_is_not_imported():
    program = "import sys, ledger.crc32c; print('importlib.metadata' in sys.modules)"
    argv = [sys.executable, "-S", "-c", program]
    paths = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(argv, capture_output=True, text=True, env=paths, check=True)
    assert done.stdout == "False\n"
