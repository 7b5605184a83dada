"""All cases, whichever module they are in."""

from __future__ import annotations

from tests.compat.rights import cases, cluster_cases, language

assert cases.__name__ and cluster_cases.__name__  # their cases are registered by the import
CASES = tuple(language.CASES)
