"""Goal: the hint about suspicious phrases points at what reads badly, and fails nothing.

Method: pairs of old and plain sentences; then the changes of a small repository.
"""

import subprocess

import pytest

from tests import plain_words

# Joined, so that this file is not suspected itself.
PAIRS = [
    (
        "`bookie audit` is for " + "who repairs what lacks copies.",
        "`bookie audit` re-replicates under-replicated ledgers.",
    ),
    (
        "Who" + " has lost the stream acknowledges nothing.",
        "Once ownership is lost, nothing is acknowledged.",
    ),
    (
        "Too few bookies " + "told their LAC.",
        "Fewer than a quorum of bookies returned their LAC.",
    ),
    (
        "A bookie may be away " + "so long before its copies are made again.",
        "How long a bookie may be absent before its ledgers are re-replicated.",
    ),
    ("None" + ": no group has this name.", "Returns None if no group has this name."),
    ("Write the file " + "anew.", "Write the file again."),
    ("No" + "body reads it.", "No client reads it."),
    ("one two three four five " * 6, "One two three four five. " * 6),
]


@pytest.mark.parametrize(("was", "plainly"), PAIRS)
def test_what_reads_badly_is_suspected_and_what_reads_plainly_is_not(was, plainly):
    assert list(plain_words.suspects(was))
    assert list(plain_words.suspects(plainly)) == []


def test_code_and_links_are_no_prose():
    assert (
        list(plain_words.suspects("The field `who" + "ever_says` and [a page](told/by/nobody)."))
        == []
    )


def test_comments_docstrings_and_messages_are_read_and_names_are_not():
    text = '''
def said(told):
    """Return what
    was asked."""
    # One line,
    # and another.
    raise ValueError("one message of words")
'''
    found = [words for _, _, words in plain_words.paragraphs("a.py", text)]
    assert [" ".join(words.split()) for words in found] == [
        "Return what was asked.",
        "one message of words",
        "One line, and another.",
    ]


def test_paragraphs_and_cells_of_a_document_are_read_and_code_blocks_are_not():
    text = "# Title\n\nOne\ntwo.\n\n```sh\nls\n```\n| a | b |\n|---|---|\n- point\n"
    found = [words for _, _, words in plain_words.paragraphs("README.md", text)]
    assert found == ["# Title", "One two.", "| a | b |", "- point"]


def test_only_changed_lines_are_read_and_nothing_fails(tmp_path, monkeypatch, capsys):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True
        )

    old, new = "# No" + "body reads it.\n", "# Some" + "body reads it.\n"
    git("init", "-q", "-b", "main")
    (tmp_path / "a.py").write_text(old + "x = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (tmp_path / "a.py").write_text(old + "x = 1\n" + new)
    (tmp_path / "README.md").write_text("Text that was " + "told.\n")
    found = list(plain_words.hints(plain_words.default_base(tmp_path), tmp_path))
    assert [line.split(" ")[0] for line in found] == ["README.md:1", "a.py:3"]
    monkeypatch.setattr(plain_words, "hints", lambda base: found)
    assert plain_words.main([]) == 0
    assert "only a hint" in capsys.readouterr().out
