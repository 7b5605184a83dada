"""Lists the APIs that this broker serves, one per file `k<key>_<name>.py` in this package."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

import gateway.handlers as package
from gateway.handlers.api import Api

_FILE = re.compile(r"k(\d\d)_[a-z_]+")


@cache
def rows() -> Mapping[int, Api]:
    """Return the rows by API key.

    The key in a file's name must equal the key of its row.
    """
    found: dict[int, Api] = {}
    for module in pkgutil.iter_modules(package.__path__):
        match = _FILE.fullmatch(module.name)
        if match is None:
            continue
        api: Api = import_module(f"{package.__name__}.{module.name}").API
        assert api.key == int(match[1]), f"{module.name} holds key {api.key}"
        assert api.key not in found, f"two files serve key {api.key}"
        found[api.key] = api
    return MappingProxyType(dict(sorted(found.items())))
