"""Goal: the command that installs a missing package names what the distribution asks for.

Method: pyproject.toml, whose extras pip does not know in a source tree.
"""

from __future__ import annotations

import shlex
import sys
import tomllib

import pytest

from ledger.command_line.extras import EXTRAS, install_command
from tests.house import ROOT


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_are_those_of_the_distribution(extra):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(EXTRAS[extra]) == declared["optional-dependencies"][extra]
    assert shlex.split(install_command(extra)) == [
        *(sys.executable, "-m", "pip", "install", *EXTRAS[extra])
    ]
