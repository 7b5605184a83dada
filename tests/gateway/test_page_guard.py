"""Goal: the page answers no other site, no route forgets to ask whether it may, and no form of
another site changes anything.

Method: an embedded gateway in a thread, with ports of several settings; requests as browsers and as
attackers send them. The walk over all routes takes those of the real application.
"""

from __future__ import annotations

import gzip
import json
import re
from urllib.parse import urlencode

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.http import rows as real_rows
from gateway.http.forms import FIELDS_MAX, Token
from gateway.http.guard import host_name
from gateway.http.raw_answers import HEADERS
from gateway.http.static_files import BYTES_MAX, STATIC, static_routes
from ledger.events import EventKind, events
from tests.gateway.authorizers import Deciding
from tests.gateway.page_rig import PageRig, ask, raw, status_of
from tests.gateway.page_rows import Seen, rows

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SAME = {"Sec-Fetch-Site": "same-origin"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with PageRig(tmp_path_factory.mktemp("page") / "data") as rig:
        yield rig


@pytest.fixture(scope="module")
def reading(rig):
    """A port without --http-write."""
    return rig.serve(rows(Seen()), names=("gateway.example",))


@pytest.fixture(scope="module")
def seen():
    return Seen()


@pytest.fixture(scope="module")
def writing(rig, seen):
    """A port with --http-write."""
    return rig.serve(rows(seen), write=True)


@pytest.fixture
def denied(rig):
    """What was asked for while everything is denied."""
    asked: list[tuple[str, str, str]] = []

    def deny(principal, operation, resource):
        asked.append((principal, str(operation), f"{resource.kind}:{resource.name}"))
        return False

    rig.running.ctx.authorizer = Deciding(deny)
    yield asked
    rig.running.ctx.authorizer = None


# -- the host --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9080", "127.0.0.1", "127.0.0.1:1", "[::1]:80", "Gateway.Example:443"],
)
def test_our_own_names_are_answered(reading, host):
    assert ask(reading, "/api/v1/plain", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost.", ""),
        *("localhost@evil.example", "evil.example:9080", "127.0.0.2", "0.0.0.0", "[::2]", "[::1"),
        *("localhost,evil.example", "localhost:80:80", "gateway.example.evil", "2130706433"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/plain", "/api/v1/plain", "/static/site.css", "/health", "/tail"]
)
def test_any_other_name_gets_421_whatever_it_asks_for(reading, host, path):
    answer = ask(reading, path, headers={"Host": host})
    assert answer.status == 421
    assert "User:" not in answer.text


@pytest.mark.parametrize(
    ("listening", "host", "status"),
    [
        ("127.0.0.2", "127.0.0.2:9080", 200),
        ("Machine.Example", "machine.example:9080", 200),
        ("fe80::1", "[fe80::1]:9080", 200),
        ("127.0.0.2", "127.0.0.3", 421),
        ("0.0.0.0", "0.0.0.0", 421),
        ("::", "[::]", 421),
    ],
)
def test_the_address_that_is_printed_is_answered(rig, listening, host, status):
    port = rig.serve(rows(Seen()), host=listening)
    assert ask(port, "/api/v1/plain", headers={"Host": host}).status == status


def test_a_request_without_a_host_gets_421(reading):
    assert status_of(raw(reading, b"GET /plain HTTP/1.0\r\n\r\n")) == 421


def test_an_absolute_address_is_not_a_way_around_the_host(reading):
    head = b"GET http://evil.example/plain HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
    assert status_of(raw(reading, head % b"localhost")) == 404
    assert status_of(raw(reading, head % b"evil.example")) == 421


@pytest.mark.parametrize(
    ("host", "name"),
    [("a:1", "a"), ("a", "a"), ("[::1]:1", "[::1]"), ("[::1]", "[::1]"), ("a:", "a")],
)
def test_a_port_is_no_part_of_a_name(host, name):
    assert host_name(host) == name


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/plain", 200),
        ("HEAD", "/plain", 200),
        ("GET", "/api/v1/plain", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/api/v1/nowhere", 404),
        ("GET", "/api/v1/plain?limit=0", 400),
        ("GET", "/broken", 500),
        ("GET", "/static/site.css", 200),
        ("GET", "/health/ready", 200),
        ("GET", "/metrics", 200),
        ("GET", "/tail?count=1", 200),
        ("POST", "/plain/t/change", 405),
        ("DELETE", "/plain", 405),
    ],
)
def test_every_response_has_the_headers(reading, method, path, status):
    answer = ask(reading, path, method)
    assert answer.status == status
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not {"set-cookie", "server"} & answer.headers.keys()
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_the_answers_that_need_no_application_have_the_same_headers(reading):
    answer = raw(reading, b"\0\r\n\r\n")
    assert HEADERS["Content-Security-Policy"] == CSP
    assert all(f"{name}: {value}\r\n".encode() in answer for name, value in HEADERS.items())


# -- what is allowed -------------------------------------------------------------------------------


def open_routes(port, application, token):
    """The routes that give an answer although nothing is allowed."""
    found = []
    for route in application.routes:
        path = re.sub(r"\{[^}]*\}", "1", route.path)
        for method in sorted(route.methods - {"HEAD"}):
            body = urlencode({"token": token}).encode() if method == "POST" else None
            answer = ask(port, path, method, {**SAME, **FORM} if body else None, body)
            assert answer.headers["content-security-policy"] == CSP, path
            if answer.status != 403 or "_AUTHORIZATION_FAILED" not in answer.text:
                found.append(f"{method} {route.path}")
    return found


OPEN = {"GET /health", "GET /health/live", "GET /health/ready"}


@pytest.mark.parametrize("kind", ["real", "ours"])
def test_no_route_but_health_and_static_files_answers_without_a_right(rig, denied, kind):
    port = rig.serve(None if kind == "real" else rows(Seen()), write=True)
    assert ask(port, "/health").status == 200
    application = rig.applications[port]
    answered = set(open_routes(port, application, application.site.token))
    assert {each for each in answered if not each.startswith("GET /static/")} == OPEN
    count = len(application.routes) - len(answered)
    assert len(denied) == count
    assert {principal for principal, _, _ in denied} == {"User:ANONYMOUS"}


def test_all_rows_are_among_the_routes(rig):
    port = rig.serve(write=True)
    ask(port, "/health")
    paths = {route.path for route in rig.applications[port].routes}
    rows_of_ours = (*real_rows.PAGES, *real_rows.STREAMS, *real_rows.DOWNLOADS, *real_rows.ACTIONS)
    assert {row.path for row in rows_of_ours} <= paths
    apis = {"/api/v1" + page.path for page in real_rows.PAGES if page.path != "/"}
    assert apis | {"/api/v1/overview"} <= paths


def test_a_route_that_forgets_to_ask_is_found(rig, denied):
    port = rig.serve(rows(Seen()), write=True)
    ask(port, "/health")
    application = rig.applications[port]

    async def forgets(request):
        return PlainTextResponse("records")

    application.routes.append(Route("/forgotten", forgets))
    rig.run(_replace_routes(application))
    assert "GET /forgotten" in open_routes(port, application, application.site.token)


async def _replace_routes(application):
    application._config.loaded_app._app.routes = application.routes


# -- changes ---------------------------------------------------------------------------------------


def changed(port, token, headers=SAME, path="/plain/orders/change", **fields):
    body = urlencode({**({"token": token} if token else {}), **fields}).encode()
    return ask(port, path, "POST", {**FORM, **headers}, body)


@pytest.fixture
def token(rig, writing):
    ask(writing, "/health")
    return rig.applications[writing].site.token


def test_a_port_that_only_reads_refuses_every_write(rig, reading):
    ask(reading, "/health")
    answer = changed(reading, rig.applications[reading].site.token)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert json.loads(answer.body)["error"]["code"] == "READ_ONLY"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": ""}, 403),
        ({}, 403),
        ({"Origin": "http://localhost:9080", "Host": "localhost:9080"}, 200),
        ({"Origin": "https://localhost:9080", "Host": "localhost:9080"}, 403),
        ({"Origin": "http://localhost:9081", "Host": "localhost:9080"}, 403),
        ({"Origin": "http://evil.example", "Host": "localhost"}, 403),
        ({"Origin": "null", "Host": "localhost"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost", "Host": "localhost"}, 403),
    ],
)
def test_only_a_page_of_ours_changes_anything(writing, token, seen, headers, status):
    seen.asked.clear()
    answer = changed(writing, token, headers)
    assert answer.status == status
    assert len(seen.asked) == (status == 200)


@pytest.mark.parametrize("wrong", ["", "x", "00" * 64, "0" * 127, "é" * 64])
def test_a_form_without_the_token_changes_nothing(writing, seen, wrong):
    seen.asked.clear()
    answer = changed(writing, wrong)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (403, "INVALID_TOKEN")
    assert seen.asked == []


def test_the_token_is_of_one_process_and_looks_different_each_time():
    token, other = Token(), Token()
    written = {token.written() for _ in range(10)}
    assert len(written) == 10
    assert all(token.accepts(each) and not other.accepts(each) for each in written)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"token=TOKEN", "application/json", 415),
        (b"token=TOKEN", "multipart/form-data; boundary=x", 415),
        (b"token=TOKEN", "text/plain", 415),
        (b"token", FORM["Content-Type"], 400),
        (b"\xff=1&token=TOKEN", FORM["Content-Type"], 400),
        (b"a=%ff&token=TOKEN", FORM["Content-Type"], 400),
        (b"token=TOKEN&token=TOKEN", FORM["Content-Type"], 400),
        (b"token=TOKEN" + b"&a%d=1" * FIELDS_MAX, FORM["Content-Type"], 400),
        (b"token=TOKEN&name=", FORM["Content-Type"] + "; charset=utf-8", 200),
    ],
)
def test_a_body_must_be_a_small_form(writing, token, body, kind, status):
    body = body.replace(b"TOKEN", token.encode())
    answer = ask(writing, "/plain/t/change", "POST", {**SAME, "Content-Type": kind}, body)
    assert answer.status == status


@pytest.mark.parametrize(
    ("back", "goes"),
    [
        ("/topics/orders?limit=5#a", "/topics/orders?limit=5#a"),
        ("/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: a=b", "/"),
        ("/a b", "/"),
        ("", "/"),
    ],
)
def test_a_browser_goes_back_to_a_page_of_ours(writing, token, back, goes):
    html = {**SAME, "Accept": "text/html,application/xhtml+xml"}
    answer = changed(writing, token, html, back=back)
    assert (answer.status, answer.headers["location"]) == (303, goes)


def test_a_program_gets_json_and_a_browser_a_page_also_of_an_error(writing, token):
    assert json.loads(changed(writing, token).body) == {"changed": "orders"}
    refused = changed(writing, token, name="bad")
    assert json.loads(refused.body)["error"]["code"] == "INVALID_TOPIC_EXCEPTION"
    page = changed(writing, token, {**SAME, "Accept": "text/html"}, name="bad")
    assert (refused.status, page.status) == (409, 409)
    assert "no such &lt;name&gt;" in page.text


def outcomes(after):
    """The changes since an event: principal, address, operation, resource and outcome."""
    found = [each.facts for each in events.after(after, 100) if each.kind is EventKind.CHANGE]
    return [tuple(facts.values()) for facts in found]


def test_each_change_is_an_event_also_one_that_was_refused(writing, token, denied):
    who = ("User:ANONYMOUS", "127.0.0.1", "ALTER", "TOPIC:orders")
    before = events.newest
    changed(writing, token, {"Sec-Fetch-Site": "cross-site"})
    changed(writing, "x")
    changed(writing, token)
    wanted = ["CROSS_SITE", "INVALID_TOKEN", "TOPIC_AUTHORIZATION_FAILED"]
    assert outcomes(before) == [(*who, outcome) for outcome in wanted]


def test_a_change_that_was_made_is_an_event(writing, token):
    who = ("User:ANONYMOUS", "127.0.0.1", "ALTER", "TOPIC:orders")
    before = events.newest
    changed(writing, token)
    changed(writing, token, name="bad")
    assert outcomes(before) == [(*who, "NONE"), (*who, "INVALID_TOPIC_EXCEPTION")]


# -- static files and compression ------------------------------------------------------------------


def test_static_files_are_revalidated_and_compressed(tmp_path):
    (tmp_path / "a.css").write_text("p { color: red }\n" * 500)
    (tmp_path / "b.txt").write_text("not served")
    (route,) = static_routes(tmp_path)
    assert route.path == "/static/a.css"
    (tmp_path / "large.js").write_bytes(bytes(BYTES_MAX + 1))
    with pytest.raises(ValueError, match="static files have"):
        static_routes(tmp_path)


def test_a_known_static_file_is_not_sent_again(reading):
    first = ask(reading, "/static/site.css")
    assert (first.status, first.headers["content-type"]) == (200, "text/css; charset=utf-8")
    again = ask(reading, "/static/site.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert (STATIC / "site.css").read_bytes() == first.body


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("br, gzip; q=0.000", False),
    ],
)
def test_large_pages_are_compressed_where_the_client_takes_it(reading, accepted, is_compressed):
    for path in ("/large", "/api/v1/large"):
        answer = ask(reading, path, headers={"Accept-Encoding": accepted})
        assert ("content-encoding" in answer.headers) == is_compressed
        assert answer.headers["vary"] == "Accept-Encoding"
        assert (len(answer.body) < 100_000) == is_compressed
    small = ask(reading, "/api/v1/plain", headers={"Accept-Encoding": accepted})
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize("count", [10, 500])
def test_a_small_page_that_is_drawn_on_the_loop_is_the_page_of_a_thread(rig, count):
    port = rig.serve(rows(Seen()))
    path = f"/small?count={count}"
    in_a_thread, *on_the_loop = [ask(port, path) for _ in range(3)]
    packed = ask(port, path, headers={"Accept-Encoding": "gzip"})
    bodies = [without_token(each.text) for each in (in_a_thread, *on_the_loop)]
    assert in_a_thread.status == 200
    assert bodies[0].count("&lt;é&gt;") == 100 * count
    assert set(bodies) == {bodies[0]}
    assert without_token(gzip.decompress(packed.body).decode()) == bodies[0]
    assert set(packed.headers) - {"content-encoding"} == set(in_a_thread.headers)


def without_token(text):
    """Return a page without the field that is another one each time."""
    return re.sub(r'<p class="token">\w+</p>', "", text)
