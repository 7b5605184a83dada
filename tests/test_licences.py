"""Goal: users learn the licence of every package that an installation brings along.

Method: the page is compared with what the pinned packages state of themselves.
"""

from __future__ import annotations

from importlib.metadata import version

from tests.licences import OURS, PAGE, STATIC, copies, of_extra, page, pinned, rows, sha256


def test_the_page_has_every_package_with_its_licence():
    assert PAGE.read_text() == page(), "run: python -m tests.licences --write"
    pins = pinned("spark") | pinned("run")
    extras = of_extra("avro") | of_extra("cel")
    assert {row.name for row in rows()} == set(pins) | extras
    assert extras <= set(pinned("dev"))
    assert [name for name in pins if version(name) not in pins[name]] == []
    assert [row.name for row in rows() if not row.licence or row.licence == "UNKNOWN"] == []


def test_a_licence_that_binds_users_is_named_in_the_text():
    copyleft = {row.name for row in rows() if "GPL" in row.licence or "MPL" in row.licence}
    text = PAGE.read_text().partition("| package")[0]
    assert copyleft and all(f"`{name}`" in text for name in copyleft), copyleft


def test_each_copied_file_is_the_one_that_its_project_released():
    assert {each.file: sha256(each.file) for each in copies()} == {
        each.file: each.sha256 for each in copies()
    }


def test_a_file_of_the_web_page_is_ours_or_has_its_licence_beside_it():
    texts = {each.text for each in copies()}
    known = OURS | {each.file for each in copies()} | texts
    assert {each.name for each in STATIC.iterdir()} <= known
    assert all("ermission" in (STATIC / text).read_text() for text in texts)
