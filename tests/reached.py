"""The functions and classes that a function calls inside a package, found in their source."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from typing import Any

Code = Callable[..., Any] | type[Any]


def reached(start: Callable[..., Any], package: str) -> list[ast.AST]:
    """Return the syntax trees of a function and of all that it names below `package`."""
    trees: list[ast.AST] = []
    waiting: list[Code] = [start]
    seen: set[Code] = set()
    while waiting:
        code = waiting.pop()
        code = code.func if isinstance(code, partial) else code
        code = inspect.unwrap(code)
        if code in seen or not str(getattr(code, "__module__", "")).startswith(package):
            continue
        seen.add(code)
        tree = _tree(code)
        trees.append(tree)
        waiting += _named(tree, code)
    return trees


@cache
def _tree(code: Code) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(code)))


def _named(tree: ast.AST, code: Code) -> Iterator[Code]:
    known = dict(vars(sys.modules[code.__module__]))
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = import_module(node.module)
            known |= {each.asname or each.name: getattr(module, each.name) for each in node.names}
    for node in nodes:
        found = None
        if isinstance(node, ast.Name):
            found = known.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = known.get(node.value.id)
            found = getattr(module, node.attr, None) if inspect.ismodule(module) else None
        if inspect.isfunction(found) or inspect.isclass(found):
            yield found
