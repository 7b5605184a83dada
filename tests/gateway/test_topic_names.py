"""Goal: exactly Kafka's topic names are legal. Method: the borders of each rule, a dumb twin."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.topic_names import collision_key, is_internal, topic_name_fault


def test_ordinary_names_are_legal():
    for name in ("a", "orders", "a.b_c-D9", "...", "-", "_", "a" * 249):
        assert topic_name_fault(name) is None


def test_the_empty_name_and_the_dots_are_not():
    assert topic_name_fault("") == "the empty string is not allowed"
    assert topic_name_fault(".") == "'.' is not allowed"
    assert topic_name_fault("..") == "'..' is not allowed"


def test_a_name_of_250_characters_is_too_long():
    assert "longer than the max allowed length 249" in topic_name_fault("a" * 250)


def test_a_very_long_name_is_cut_in_the_text():
    text = topic_name_fault("a" * 32_767)
    assert text == f"the length of '{'a' * 512}...' is longer than the max allowed length 249"


def test_what_could_be_a_path_or_break_a_log_line_is_refused():
    for name in ("a/b", "a\0b", "a b", "a\n", "ä", "名", "a:b", "a\\b", "*"):
        assert "ASCII alphanumerics" in topic_name_fault(name)


@pytest.mark.slow
@given(st.text(min_size=3, max_size=20))
def test_legality_equals_that_of_a_plain_loop_over_characters(name):
    legal = all(character in string.ascii_letters + string.digits + "._-" for character in name)
    assert (topic_name_fault(name) is None) == legal


def test_names_that_differ_in_dots_and_underscores_only_collide():
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("a-b")


def test_kafkas_own_topics_are_internal():
    assert is_internal("__consumer_offsets")
    assert not is_internal("__mine")
