"""The reference of the HTTP interface, written from its rows and from the code behind them.

`python -m tests.http_reference` rewrites docs/http-api.md. The parameters and errors of a route are
those that its view names, also in functions that it calls. `http_words.py` has their meanings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.config import HttpConfig
from gateway.http import file_stream, forms, record_cursor, record_filter, rows
from gateway.http import site as site_module
from gateway.http.pages import CURSOR_CHARACTERS_MAX, LIMIT_MAX, Needs, api_path
from gateway.http.record_rows import CUT_BYTES, WHOLE_BYTES
from gateway.http.record_search import Bounds
from gateway.http.views import record_changes, tail
from tests.error_words import HTTP
from tests.errors_reference import http_errors, words_of
from tests.house import ROOT
from tests.http_words import FIELDS, PARAMETERS
from tests.reached import reached

DOCUMENT = ROOT / "docs/http-api.md"
PACKAGE = "gateway.http"
_PATH = {name: name.upper() for name in ("topic", "group", "partition", "offset", "name")}
_CODE_OF_KAFKA = "Kafka's code"
# The files that see a request before and behind its view.
_BEFORE_VIEWS = (
    *("asking.py", "forms.py", "guard.py", "page_routes.py", "protocol.py", "server.py"),
)
_HEAD = """\
# HTTP API

All paths of the web page and of its JSON. This page is written from the code: `python -m
tests.http_reference`. [page.md](page.md) describes the port, passwords and who may do what, and
[errors.md](errors.md#http) the errors with cause and fix.

**Reading.** Each page is also JSON below `/api/v1`, from the same view, by `GET` and `HEAD`.
Words in capitals in a path stand for names, percent-encoded: `%2F` is a part of a name. A parameter
that is there twice is refused.

**Lists.** The rows are in `rows`. `next` is the `cursor` of the rows that follow, or null. What is
unknown is null, never 0.

**Changes.** `POST` with a form (`application/x-www-form-urlencoded`). They need `--http-write`, a
page of this gateway as their origin, and its `token` as a field. `back` is the path to which a
browser goes afterwards. The answer is JSON unless `Accept` has `text/html`. Each is an event. The
forms of the pages have the token, which changes with each start; scripts use the
[commands](commands.md), or a client of Kafka.

**Errors.** JSON is `{"error": {"code": "INVALID_REQUEST", "message": "limit must be 1 to 500"}}`.
Each path may also answer with the [errors of all paths](#errors-of-all-paths). *Kafka's code* is
the code of a request that the page made as a client of the cluster.

**Rights.** Each path names the operation and the resource, in Kafka's words, that its principal
must be allowed. With an authorizer [ACLs](security-acls.md#the-web-page) decide; without one
everything is allowed.
"""


class Route(NamedTuple):
    """One path of the interface."""

    heading: str
    path: str  # as its row has it
    text: str  # what it returns
    needs: Needs
    code: Callable[..., Any]  # its view, or what stands for it
    also: str = ""  # its other form


class Found(NamedTuple):
    """What the code of a route names."""

    parameters: set[str]
    fields: set[str]
    errors: set[tuple[str, str]]  # status and code
    operations: set[str]  # that it needs on what else it changes


def routes() -> Iterator[tuple[str, list[Route]]]:
    """All routes by their kind."""
    yield (
        "Pages",
        [
            Route(
                f"GET {_shown(api_path(page))}",
                page.path,
                _first_line(page.view),
                page.needs,
                page.view,
                f"As HTML: `{_shown(page.path)}` ({page.title}).",
            )
            for page in rows.PAGES
        ],
    )
    yield (
        "Streams of events",
        [
            Route(
                f"GET {_shown(each.path)}",
                each.path,
                _first_line(each.events),
                each.needs,
                each.events,
                "Server-sent events (`text/event-stream`).",
            )
            for each in rows.STREAMS
        ],
    )
    yield (
        "Files",
        [
            Route(
                f"GET {_shown(each.path)}",
                each.path,
                _first_line(each.pieces),
                each.needs,
                each.pieces,
                f"A file (`{each.media_type}`).",
            )
            for each in rows.DOWNLOADS
        ],
    )
    yield (
        "Changes",
        [
            Route(
                f"POST {_shown(each.path)}",
                each.path,
                _first_line(each.act),
                each.needs,
                each.act,
                f"Its event has the operation `{each.name}`.",
            )
            for each in rows.ACTIONS
        ],
    )


def _shown(path: str) -> str:
    return path.format(**_PATH)


def _first_line(code: Callable[..., Any]) -> str:
    text = (code.__doc__ or "").strip().partition("\n\n")[0]
    return re.sub("^Return ", "Returns ", " ".join(text.split()))


# --- what the code names ------------------------------------------------------------------------


def found_in(code: Callable[..., Any]) -> Found:
    """Return the parameters, fields and errors that a view names."""
    found = Found(set(), set(), set(), set())
    for tree in reached(code, PACKAGE):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                _note(node, found)
            elif isinstance(node, ast.Attribute) and _last_name(node.value) == "asked":
                found.parameters.update({"cursor", "limit"} & {node.attr})
    return found


def _note(call: ast.Call, found: Found) -> None:
    name = _last_name(call.func)
    if name == "get" and isinstance(call.func, ast.Attribute):
        of = _last_name(call.func.value)
        into = {"query": found.parameters, "form": found.fields}.get(of)
        if into is not None:
            into.update(_texts(call.args[:1]))
    elif name in ("field", "ticked"):
        found.fields.update(_texts(call.args[1:2]))
    elif name == "read_query":
        found.parameters.update(set(record_filter.PARAMETERS) - {"limit", "cursor"})
    elif name == "require" and len(call.args) == 4:
        found.operations.add(_last_name(call.args[2]))
    elif name == "Refused" and len(call.args) > 1:
        found.errors.update(_errors(*call.args[:2]))


def _errors(status: ast.expr, code: ast.expr) -> Iterator[tuple[str, str]]:
    """Return the statuses with a code, which may be one that the code only passes on."""
    texts = _texts([code])
    if not texts and ast.unparse(code) == "code":  # of `require`: it is on all paths
        return
    for node in ast.walk(status):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield str(node.value), texts[0] if texts else _CODE_OF_KAFKA


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def meaning(words: Mapping[str, str], path: str, name: str) -> str:
    """Return the meaning of a name. Raises LookupError if it has none."""
    for key in (f"{path} {name}", name):
        if key in words:
            return words[key]
    raise LookupError(f"tests/http_words.py has no meaning of {name}, which {path} takes")


# --- the document -------------------------------------------------------------------------------


def document() -> str:
    """The text of docs/http-api.md."""
    parts = [_HEAD, *_bounds(), *_of_all_paths()]
    for title, found in routes():
        parts += [f"## {title}", ""]
        for route in found:
            parts += _section(route)
    parts += _probes()
    return "\n".join(parts).rstrip() + "\n"


def _section(route: Route) -> Iterator[str]:
    operation, resource = route.needs(_PATH)
    name = "" if resource.name == "kafka-cluster" else f" `{resource.name}`"
    found = found_in(route.code)
    is_change = route.heading.startswith("POST")
    # The filter of a copy is a part of its form.
    names = sorted(found.fields | found.parameters if is_change else found.parameters)
    words = {**PARAMETERS, **FIELDS} if is_change else PARAMETERS
    yield from (f"### `{route.heading}`", "", f"{route.text} {route.also}", "")
    further = "".join(f", and {each} on what it writes to" for each in sorted(found.operations))
    yield from (f"Needs {operation} on {resource.kind}{name}{further}.", "")
    if names:
        yield from (f"| {'field' if is_change else 'parameter'} | meaning |", "|---|---|")
        yield from (f"| `{each}` | {meaning(words, route.path, each)} |" for each in names)
        yield ""
    if found.errors:
        yield from (f"Errors: {', '.join(map(_error, sorted(found.errors)))}.", "")


def _error(error: tuple[str, str]) -> str:
    status, code = error
    return f"{status} {code}" if code == _CODE_OF_KAFKA else f"{status} `{code}`"


def _bounds() -> Iterator[str]:
    http, search = HttpConfig(), Bounds()
    yield from ("## Bounds", "", "| what | bound |", "|---|---|")
    bounds = {
        "connections": f"{http.connections_max}",
        "request line and headers": f"{_kib(http.head_bytes_max)}, within {http.head_s_max:g} s",
        "body": _kib(http.body_bytes_max),
        "fields of a form": f"{forms.FIELDS_MAX}",
        "one request, but for streams and files": f"{http.request_s_max:g} s",
        "a file": f"{file_stream.TAKE_S_MAX:g} s until the client takes a piece",
        "`limit`": f"1 to {LIMIT_MAX}",
        "`cursor`": f"{CURSOR_CHARACTERS_MAX:,} characters",
        "a search of records": f"{search.records:,} records, {_kib(search.bytes)}, "
        f"{search.seconds:g} s, {record_cursor.PARTITIONS_MAX} partitions",
        "searches at a time": f"{site_module.SEARCHES_MAX}",
        "a copy": f"as a search, within {record_changes.COPY_BOUNDS.seconds:g} s",
        "tails at a time": f"{tail.TAILS_MAX}",
        "a tail": f"{tail.ROWS_PER_S} records and {_kib(tail.BYTES_PER_S)} a second; others are "
        "counted",
        "key, value and headers in a list": f"{_kib(CUT_BYTES)} each",
        "key, value and headers of one record": f"{_kib(WHOLE_BYTES)} each",
    }
    yield from (f"| {what} | {bound} |" for what, bound in bounds.items())
    yield ""


def _kib(size: int) -> str:
    return f"{size // 1024} KiB" if size % 1024**2 else f"{size // 1024**2} MiB"


def _of_all_paths() -> Iterator[str]:
    """Errors that come before a view, or of what it asks the cluster for."""
    before = set[tuple[int, str]]().union(*map(http_errors, _BEFORE_VIEWS))
    yield from ("## Errors of all paths", "", "| status | code | when |", "|---|---|---|")
    yield "| 403 | `..._AUTHORIZATION_FAILED` | the principal may not do the operation |"
    yield f"| 404, 409 | {_CODE_OF_KAFKA} | the cluster does not know it; the cluster refused |"
    for error in sorted(before):
        yield f"| {error[0]} | `{error[1]}` | {words_of(HTTP, error).cause} |"
    yield ""


def _probes() -> Iterator[str]:
    """The paths for programs that watch a gateway, which have no view."""
    yield from ("## Metrics and health", "", "Also at `--metrics-port`, under any host name.", "")
    yield from ("| path | answer | needs |", "|---|---|---|")
    yield from (
        "| `GET /metrics` | the [metrics](metrics.md), for Prometheus | DESCRIBE on CLUSTER |",
        "| `GET /health/live` | 200 while the process answers at all | nothing, no password |",
        "| `GET /health/ready`, `GET /health` | 200 if it takes requests of clients, else 503 with "
        "the reasons | nothing, no password |",
        "",
        '`/health` answers `{"status": "ok", "reasons": []}`.',
    )


def differences() -> list[str]:
    """What to do if the document is not as the code says."""
    if DOCUMENT.exists() and DOCUMENT.read_text() == document():
        return []
    return ["docs/http-api.md: run `python -m tests.http_reference`"]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
