"""The optional packages of this distribution, by extra, and the command that installs them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Final

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": ("fastavro>=1.13,<2",),
    "cel": ("common-expression-language>=0.10,<0.11",),
    "spark": ("pyspark>=4.0.0,<4.3", "pandas>=2.2", "pyarrow>=18"),
}
"""The requirements of each extra in pyproject.toml that a command may lack.

A source tree is not installed, so pip knows none of its extras.
"""


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra for this interpreter."""
    return shlex.join([sys.executable, "-m", "pip", "install", *EXTRAS[extra]])
