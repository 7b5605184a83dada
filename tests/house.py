"""The house rules as functions: sources in, `file:line what` out. `test_house.py` runs them.

Each rule names the place and what to do. Exceptions stand here, by name and with their reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

PRODUCT = ("gateway/", "subscriptions/", "ledger/")
CORES = (
    *("ledger/core/", "gateway/core/", "subscriptions/committed_offset.py"),
    "gateway/cluster/ownership_state.py",
)
ENTRY_POINTS = (
    "gateway.__main__",
    "ledger.__main__",
    "gateway.native",  # applications import it
    *("gateway.testing", "gateway.testing.plugin"),  # their tests do
    *(f"gateway.pipelines.submit.{job}" for job in ("archive", "replay", "audit")),  # spark-submit
)
# Cores that simulation proves before a shell uses them. With its shell, each leaves this list.
AHEAD: tuple[str, ...] = ()
TOP_LEVEL = {
    "gateway",
    "subscriptions",
    "ledger",
    "tests",
    "compose",
    "docs",
    "pyproject.toml",
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
}

# What a core may import of the standard library: nothing that waits, looks at a clock, draws
# lots or touches the machine.
CORE_IMPORTS = {
    "__future__",
    "abc",
    "array",
    "base64",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "hashlib",
    "hmac",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "statistics",
    "struct",
    "typing",
    "urllib",
    "uuid",
    "zlib",
}
# Packages that compute and hold no state of the world.
CORE_PACKAGES = {"crc32c", "google", "kio", "numpy"}

# Clocks and chance, by dotted name; `call` names what is found in code.
UNCERTAIN = re.compile(
    r"^(time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns)"
    r"|random\.\w+|secrets\.\w+|os\.urandom|uuid\.uuid[14]"
    r"|datetime\.(datetime\.)?(now|utcnow|today))$"
)
_MAY_BE_UNCERTAIN = re.compile(
    r"^ *(?:from|import) .*\b(?:time|random|secrets|datetime)\b|\burandom\b|\buuid[14]\b",
    re.MULTILINE,
)
# Where the world may be looked at, and why.
UNCERTAIN_ALLOWED = {
    "ledger/adapters/": "the ports' real ends",
    "ledger/ports/clock.py": "measures how long requests and adds take, and decides nothing",
    "ledger/events.py": "gives events their times, as the log gives them to its lines",
    "ledger/command_line/progress.py": "shows how long people wait, and decides nothing",
    "gateway/process/embedded.py": "puts the real ends behind the ports",
    "gateway/process/assemble.py": "hands chance to what needs it",
    "gateway/admin/": "a command-line client of the gateway, outside of it",
    "gateway/http/": "draws secrets of forms and passwords; a client of the cluster as well",
    "gateway/pipelines/": "jobs on Spark, clients as well",
    "gateway/process/secure_dev.py": "makes a certificate with its days, and a password",
    "gateway/process/local_cluster/": "starts processes of this machine and waits for them",
    "gateway/testing/": "runs in the tests of applications, which wait for a process",
}
# Fresh ids: they have to differ from each other, and nothing is decided by their value.
FRESH_IDS = {
    ("gateway/groups/coordinator.py", "uuid.uuid4"): "a member's id",
    ("gateway/topics/catalog.py", "uuid.uuid4"): "a topic's id",
    ("gateway/settings/stored_rows.py", "uuid.uuid4"): "tells lives of a row apart",
    ("gateway/process/cluster_layout.py", "uuid.uuid4"): "a cluster's id",
    ("gateway/server/logins.py", "secrets.token_urlsafe"): "the nonce of a login",
    ("gateway/security/link_security.py", "secrets.token_urlsafe"): "the nonce of a login",
    ("gateway/settings/scram_decoys.py", "secrets.token_bytes"): "a secret of the cluster",
    ("gateway/features/features.py", "uuid.uuid4"): "tells lives of a node apart",
    ("gateway/cluster/zookeeper_cluster.py", "uuid.uuid4"): "tells incarnations of gateways apart",
    (
        "subscriptions/segments/log_claim.py",
        "secrets.randbits",
    ): "tells stores apart that write the same",
    (
        "ledger/client/client.py",
        "secrets.randbits",
    ): "tells whose creation it was after a lost reply",
}


@dataclass(frozen=True)
class Source:
    """One tracked or new file of the tree; `path` is relative to the root."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def product(self) -> bool:
        return self.path.startswith(PRODUCT)

    @property
    def core(self) -> bool:
        return self.path.startswith(CORES)

    def at(self, node: ast.AST | int, what: str) -> str:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path}:{line} {what}"


def tree_files(root: Path = ROOT) -> list[str]:
    """Paths of all files that are tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({name for name in listed.stdout.split("\0") if name and (root / name).is_file()})


def read_sources(paths: Iterable[str], root: Path = ROOT) -> list[Source]:
    return [Source(path, (root / path).read_text(encoding="utf-8")) for path in paths]


def ruff(*options: str, text: str = "") -> str:
    """Returns what ruff finds in the tree or in `text`, as JSON."""
    words = [sys.executable, "-m", "ruff", "check", "--output-format", "json", *options]
    done = subprocess.run(words, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def is_generated(path: str) -> bool:
    return "_pb2" in path


# --- sizes --------------------------------------------------------------------------------------
# Ruff has the rest: line length, statements, branches, complexity and nesting.

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(r"^( *)(async def|def|class|@)", re.MULTILINE)


def too_long(source: Source) -> Iterator[str]:
    """Files and functions beyond their bounds."""
    if len(source.lines) > FILE_LINES_MAX:
        yield source.at(1, f"{len(source.lines)} lines, at most {FILE_LINES_MAX}")
    if not _may_be_too_long(source):
        return
    for node in source.nodes:
        if isinstance(node, _FUNCTIONS):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.at(node, f"{node.name} has {lines} lines, at most 60")


def _may_be_too_long(source: Source) -> bool:
    """False if each function is followed soon by a definition that is not inside of it."""
    around: list[tuple[int, int, bool]] = []  # indentation, line, and whether it is a function
    line, place = 1, 0
    for found in [*_DEFINITION.finditer(source.text), None]:
        indent = len(found[1]) if found else -1
        start = found.start() if found else len(source.text)
        line, place = line + source.text.count("\n", place, start), start
        while around and around[-1][0] >= indent:
            _, first, is_function = around.pop()
            if is_function and line - first > FUNCTION_LINES_MAX:
                return True
        around.append((indent, line, found is not None and found[2].endswith("def")))
    return False


# --- cores --------------------------------------------------------------------------------------


def waits_in_core(source: Source) -> Iterator[str]:
    """A core has no `await`, and imports nothing that waits, draws lots or sees the machine."""
    for node in source.nodes:
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            yield source.at(node, "a core does not wait: no async, no await")
        for name in _imported(node):
            top = name.split(".")[0]
            if f"{top}/" in PRODUCT:
                continue
            if top not in CORE_IMPORTS | CORE_PACKAGES:
                yield source.at(node, f"a core does not import {name}")


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []


def looks_at_the_world(source: Source) -> Iterator[str]:
    """Clocks and chance come through ports; only the adapters call them."""
    if source.path.startswith(tuple(UNCERTAIN_ALLOWED)) or not _MAY_BE_UNCERTAIN.search(
        source.text
    ):
        return
    aliases = _aliases(source)
    for node in source.nodes:
        if isinstance(node, (ast.Attribute, ast.Name)):
            name = _dotted(node, aliases)
            if name and UNCERTAIN.match(name) and (source.path, name) not in FRESH_IDS:
                yield source.at(node, f"{name}: take the time or the choice as an argument")


def _aliases(source: Source) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else None
    return None


# --- errors -------------------------------------------------------------------------------------


def stops_cancellation(source: Source) -> Iterator[str]:
    """What catches BaseException raises again. Ruff finds what is bare, blind or silent."""
    if not source.product or "BaseException" not in source.text:
        return
    for node in source.nodes:
        catches = isinstance(node, ast.ExceptHandler) and "BaseException" in _kinds(node.type)
        if catches and not any(isinstance(each, ast.Raise) for each in ast.walk(node)):
            yield source.at(node, "except BaseException must raise again: cancellation passes")


def _kinds(kind: ast.expr | None) -> set[str]:
    if kind is None:
        return set()
    parts = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return {ast.unparse(part).split(".")[-1] for part in parts}


# --- words --------------------------------------------------------------------------------------

_UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


def unfinished(source: Source) -> Iterator[str]:
    if not _UNFINISHED.search(source.text):
        return
    for number, line in enumerate(source.lines, 1):
        if _UNFINISHED.search(line):
            yield source.at(number, "finish it, or say it in docs/NOT_DONE.md")


# In pieces, so that this file does not hold what it looks for.
_PATHS = re.compile("|".join("/" + place for place in ("work/", "farm/", "root/", "home/")))
_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(host))
        for host in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("repo1", "maven"),
            ("repo", "maven"),
            ("registry", "npmjs"),
            ("proxy", "golang"),
            ("deb", "debian"),
        )
    )
)


def names_a_machine(source: Source) -> Iterator[str]:
    """No path of somebody's machine and no registry host: the tree works anywhere."""
    if not _PATHS.search(source.text) and not _HOSTS.search(source.text.lower()):
        return
    for number, line in enumerate(source.lines, 1):
        if _PATHS.search(line):
            yield source.at(number, "a path of one machine")
        if _HOSTS.search(line.lower()):
            yield source.at(number, "a registry host: the installer's own settings name it")


# --- tests --------------------------------------------------------------------------------------

_SKIPS = re.compile(r"\b(pytest\.(skip|xfail|importorskip)|mark\.(skip|skipif|xfail))\b")
_SLEEPS = re.compile(r"\btime\.sleep\(|from time import .*\bsleep\b")
_CHECKS = re.compile(
    r"\bassert\b|\braises\b|\b_?(check|expect|verify|compare|conform|agree)\w*\("
    r"|\basyncio\.(timeout|wait_for)\("  # that it ends in time
)
_CALLS = re.compile(r"(\w+)\(")
_FUNCTION = re.compile(r"^( *)(?:async )?def (\w+)", re.MULTILINE)
_IMPORT_OF_TESTS = re.compile(r"^ *from (tests\.[\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
_MOCKS = re.compile(r"\b(?:Mock|MagicMock|AsyncMock)\b(?=\()")
_ONLY_THAT = re.compile(r"^\s+except \w+", re.MULTILINE)  # any other error fails the test


def weak_tests(source: Source) -> Iterator[str]:
    """Tests do not sleep or skip, say their goal first, and each one checks something."""
    if _SLEEPS.search(source.text) or _SKIPS.search(source.text):
        yield from _waits_and_skips(source)
    if not source.path.rsplit("/", 1)[-1].startswith("test_"):
        return
    if not source.text.startswith(('"""', 'r"""')):
        yield source.at(1, "a test file opens with its goal and method")
    for name in sorted(_tests_without_checks(source)):
        line = source.text.count("\n", 0, source.text.index(f"def {name}(")) + 1
        yield source.at(line, f"{name} asserts nothing")
    for found in _MOCKS.finditer(source.text):
        line = source.text.count("\n", 0, found.start()) + 1
        yield source.at(line, "a mock: use the port's fake")


def _waits_and_skips(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if _SLEEPS.search(line):
            yield source.at(number, "a sleep: wait for the fact, or use virtual time")
        if _SKIPS.search(line):
            yield source.at(number, "a skip: say what did not run, and why, as a failure")


def _tests_without_checks(source: Source) -> set[str]:
    """Names of tests that check nothing. The syntax tree decides where indentation cannot."""
    weak = set[str]()
    for functions in (functions_by_indentation, functions_by_syntax):
        found = functions(source)
        weak = {name for name in found if name.startswith("test_")} - _checking(source, functions)
        if not weak:
            break
    return weak


def functions_by_indentation(source: Source) -> dict[str, str]:
    """Text of each function, by name. A string with lines further out ends it too early."""
    texts: dict[str, str] = {}
    for found in _FUNCTION.finditer(source.text):
        end = _ends(len(found[1])).search(source.text, found.end())
        texts[found[2]] = source.text[found.start() : end.start() if end else len(source.text)]
    return texts


@cache
def _ends(indent: int) -> re.Pattern[str]:
    return re.compile(rf"^ {{0,{indent}}}[^\s)\]}}#]", re.MULTILINE)


def functions_by_syntax(source: Source) -> dict[str, str]:
    functions = [node for node in source.nodes if isinstance(node, _FUNCTIONS)]
    return {f.name: "\n".join(source.lines[f.lineno - 1 : f.end_lineno]) for f in functions}


Functions = Callable[[Source], dict[str, str]]


def _checking(source: Source, functions: Functions) -> set[str]:
    """Functions that check something, themselves or through another one, also an imported one."""
    texts = functions(source)
    checking = {n for n, text in texts.items() if _CHECKS.search(text) or _ONLY_THAT.search(text)}
    for module, names in _IMPORT_OF_TESTS.findall(source.text):
        checking |= _checking_in(module, functions) & set(_WORD.findall(names))
    calls = {name: set(_CALLS.findall(text)) for name, text in texts.items()}
    while True:
        more = {name for name, called in calls.items() if called & checking} - checking
        if not more:
            return checking
        checking |= more


@cache
def _checking_in(module: str, functions: Functions) -> set[str]:
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.exists():
        return set()
    return _checking(Source(module, path.read_text(encoding="utf-8")), functions)


# --- handlers -----------------------------------------------------------------------------------

_HANDLER = re.compile(r"^gateway/handlers/k(\d\d)_(\w+)\.py$")


@dataclass(frozen=True)
class Row:
    """What `API = Api(...)` of one handler file says."""

    path: str
    line: int
    key: int
    name: str
    versions: range
    advertised: range | None


def handler_rows(sources: Sequence[Source]) -> tuple[list[Row], list[str]]:
    """The rows of all handler files, and what is wrong with them."""
    rows: list[Row] = []
    wrong: list[str] = []
    for source in sources:
        found = _HANDLER.match(source.path)
        if not found:
            continue
        row = _row_of(source)
        if row is None:
            wrong.append(source.at(1, "no `API = Api(key=..., name=..., versions=range(...))`"))
            continue
        rows.append(row)
        if row.key != int(found[1]):
            wrong.append(source.at(row.line, f"key {row.key} in a file named k{found[1]}"))
        if row.name.lower() != found[2].replace("_", ""):
            wrong.append(source.at(row.line, f"{row.name} in a file named {found[2]}"))
        header = (ast.get_docstring(source.tree) or "").split("\n")[0]
        if not header.startswith(f"{row.name}, key {row.key}, v"):
            wrong.append(source.at(1, f"the header begins `{row.name}, key {row.key}, v...`"))
        elif _versions_said(header) not in (row.versions, None):
            wrong.append(source.at(1, f"the header's versions are not those of {row.versions}"))
    return sorted(rows, key=lambda row: row.key), wrong


def _versions_said(header: str) -> range | None:
    said = re.search(r"\bv(\d+)(?:\s*-\s*v?(\d+))?", header)
    return range(int(said[1]), int(said[2] or said[1]) + 1) if said else None


def _row_of(source: Source) -> Row | None:
    for node in source.tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if [ast.unparse(target) for target in node.targets] != ["API"]:
            continue
        said = {word.arg: word.value for word in node.value.keywords}
        try:
            key, name = ast.literal_eval(said["key"]), ast.literal_eval(said["name"])
            versions = _range(said["versions"])
            advertised = _range(said["advertised"]) if "advertised" in said else None
        except (KeyError, ValueError):
            return None
        return Row(source.path, node.lineno, key, name, versions, advertised)
    return None


def _range(node: ast.expr) -> range:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
        return range(*(ast.literal_eval(word) for word in node.args))
    raise ValueError(ast.unparse(node))


# --- dead files ---------------------------------------------------------------------------------


_DOTTED = re.compile(
    r"(?:^ *(?:from|import) |\")((?:gateway|subscriptions|ledger)[\w.]*)", re.MULTILINE
)
_IMPORT_FROM = re.compile(r"^ *from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
_TOP_DEFINITION = re.compile(r"^(?:async def|def|class) (\w+)", re.MULTILINE)


def dead_modules(sources: Sequence[Source], waiting: Sequence[str] = AHEAD) -> list[str]:
    """Product modules that no entry point reaches, by import or by name."""
    product = {source.module: source for source in sources if source.product}
    running = _reached(product, ENTRY_POINTS)
    ahead = _reached(product, waiting)
    return [
        product[name].at(1, "is used now: take it from AHEAD")
        for name in waiting
        if name in running
    ] + [
        source.at(1, "nothing that runs imports it: use it or remove it")
        for name, source in sorted(product.items())
        if name not in running | ahead and not source.path.endswith("__init__.py")
    ]


def _reached(product: dict[str, Source], roots: Iterable[str]) -> set[str]:
    """The modules that these ones import, by import or by name, and these ones."""
    reached: set[str] = set()
    waiting = [name for name in roots if name in product]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        waiting += [found for found in _uses(product[name], product) if found not in reached]
    return reached


def _uses(source: Source, product: dict[str, Source]) -> set[str]:
    """Modules that it imports, or names in a string: importlib.import_module("gateway.cli")."""
    names = set(_DOTTED.findall(source.text))
    for module, imported in _IMPORT_FROM.findall(source.text):
        names |= {f"{module}.{name}" for name in _WORD.findall(imported)}
    if source.path == "gateway/handlers/table.py":  # takes every k<key>_<name>.py beside it
        names |= {other.module for other in product.values() if _HANDLER.match(other.path)}
    return names & product.keys()


def dead_names(sources: Sequence[Source]) -> list[str]:
    """Functions and classes of product modules that nothing names, tests included."""
    said = Counter(word for source in sources for word in _WORD.findall(source.text))
    return [
        source.at(
            source.text.count("\n", 0, found.start()) + 1, f"{found[1]} is used nowhere: remove it"
        )
        for source in sources
        if source.product
        for found in _TOP_DEFINITION.finditer(source.text)
        if said[found[1]] == 1 and not _is_decorated(source.text, found.start())
    ]


def _is_decorated(text: str, start: int) -> bool:
    above = text[:start].rstrip("\n").rpartition("\n")[2]
    return above.startswith(("@", ")"))  # a decorator, or the end of one


def top_level(paths: Iterable[str]) -> list[str]:
    """Only the known names lie at the top."""
    return sorted(
        {
            f"{first}:1 does not belong at the top of the tree"
            for first in (path.split("/")[0] for path in paths)
            if first not in TOP_LEVEL and not first.startswith(".")
        }
    )
