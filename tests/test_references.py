"""Goal: the pages that are written from code say what the code says, and leave nothing out.

Method: each page is compared with what its generator makes now. A generator must refuse a name
without a meaning, and no meaning may be left over.
"""

from __future__ import annotations

from functools import partial

import pytest
from click.testing import CliRunner
from kio.schema.errors import ErrorCode

from gateway.http.pages import Asked, Refused
from gateway.http.rows import ACTIONS, DOWNLOADS, PAGES, STREAMS
from tests import command_output, commands_reference, drawings, errors_reference, http_reference
from tests.error_words import EXITS, HTTP
from tests.http_words import FIELDS, PARAMETERS
from tests.kafka_error_words import KAFKA
from tests.reached import reached

ROUTES = [route for _, routes in http_reference.routes() for route in routes]


@pytest.mark.parametrize(
    "generator",
    [commands_reference, http_reference, errors_reference, drawings],
    ids=lambda module: module.__name__,
)
def test_a_page_is_what_its_generator_makes(generator):
    assert generator.differences() == []


def test_the_reference_leaves_the_commands_as_their_programs_show_them():
    """A command keeps the first option for help that is made: a later test would see it."""
    assert commands_reference.document()
    kept = [command._help_option for _, command in commands_reference.tree()]
    assert all(each is not None and each.opts == ["-h", "--help"] for each in kept)


def test_every_command_has_a_section_and_a_line_in_that_of_its_group():
    text = commands_reference.document()
    for path, _ in commands_reference.tree():
        words = " ".join(path)
        assert f"\n## `{words}`\n" in text
        if len(path) > 1:
            assert f"\n| [`{words}`](#" in text


def test_an_option_of_many_commands_is_described_once():
    text = commands_reference.document()
    assert text.count("\n| `--columns NAMES` |") == 1
    assert "`--columns`" in text.partition("## `gateway topic list`")[2].partition("\n## ")[0]
    assert "\n| `--to WHERE` |" in text


def test_the_page_of_commands_shows_the_defaults_that_help_shows():
    compared = 0
    for path, command in commands_reference.tree():
        shown = CliRunner().invoke(command_output.PROGRAMS[path[0]], [*path[1:], "--help"]).output
        words = "".join(shown.split())
        for name, default in commands_reference.defaults(path, command).items():
            if default not in ("-", "required"):
                assert f"default:{''.join(default.split())}]" in words, (path, name)
                compared += 1
    assert compared > 500
    assert "| 127.0.0.1:9092 | `GATEWAY_BOOTSTRAP` |" in commands_reference.document()


def test_every_route_is_a_section():
    text = http_reference.document()
    assert len(ROUTES) == len([*PAGES, *STREAMS, *DOWNLOADS, *ACTIONS])
    for route in ROUTES:
        assert f"\n### `{route.heading}`\n" in text


def test_every_meaning_of_a_parameter_or_field_is_that_of_a_route():
    used = set[str]()
    for route in ROUTES:
        found = http_reference.found_in(route.code)
        for name in found.parameters | found.fields:
            used |= {name, f"{route.path} {name}"}
    assert used.issuperset({*PARAMETERS, *FIELDS})


async def of_a_helper(asked: Asked) -> str:
    if asked.query.get("planted") is None:
        raise Refused(418, "PLANTED", "a test")
    return asked.form.get("grown", "")


async def planted_view(asked: Asked, site: object) -> str:
    """Return a text. A view of a test."""
    return await of_a_helper(asked)


def test_what_a_function_of_a_view_names_is_found_and_needs_a_meaning(monkeypatch):
    monkeypatch.setattr(http_reference, "PACKAGE", __name__)
    found = http_reference.found_in(planted_view)
    assert (found.parameters, found.fields) == ({"planted"}, {"grown"})
    assert found.errors == {("418", "PLANTED")}
    with pytest.raises(LookupError, match="no meaning of planted, which /a takes"):
        http_reference.meaning(PARAMETERS, "/a", "planted")


def test_functions_are_followed_through_calls_and_partials_but_not_out_of_the_package():
    assert len(reached(planted_view, __name__)) == 2
    assert len(reached(partial(of_a_helper), __name__)) == 1
    assert reached(planted_view, "gateway.http") == []


def test_words_about_errors_are_those_of_codes_that_exist():
    assert {name for _, name in errors_reference.exit_rows()} == EXITS.keys()
    assert errors_reference.http_errors() == HTTP.keys()
    assert set(KAFKA) <= {code.name for code in ErrorCode}
    for words in (*EXITS.values(), *HTTP.values(), *KAFKA.values()):
        assert words.cause and words.fix
        assert not words.cause.endswith(".") and not words.fix.endswith(".")


def test_a_code_that_is_only_compared_is_not_answered():
    tree = errors_reference.ast.parse(
        "if error == ErrorCode.producer_fenced: answer(ErrorCode.not_coordinator)\n"
        "match error:\n case ErrorCode.none: pass"
    )
    assert errors_reference.named(tree) == {"not_coordinator"}


def test_a_code_without_words_is_refused():
    with pytest.raises(LookupError, match="has no cause and fix"):
        errors_reference.words_of(KAFKA, "no_such_error")
