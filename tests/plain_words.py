"""Print phrases of changed lines that may not be plain words: a hint, never a failure.

`python -m tests.plain_words [BASE]` reads the lines that changed since BASE. Without it, BASE is
where the branch left `main`, or the last commit on `main` itself. The rule and its reasons are in
docs/HOUSE_STYLE.md, under "Prose".
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.house import ROOT

SENTENCE_WORDS_MAX = 25
PRINTED_MAX = 40
SUSPECTS = {
    "a clause without a noun": re.compile(
        r"\b(?:for|to|from|by|with|of|than|as|is|are|that|and|but|shows?|gives?) who(?:ever)?\b"
        r"|^(?:Who|Whoever|What|Whatever)\b[^?]*$"
    ),
    "a process is no person": re.compile(
        r"\b(?:says?|said|tells?|told|hears?|heard|owes?|owed|mends?|mended|judges?|judged"
        r"|knows?|knew|forgets?|forgot|forgotten)\b",
        re.IGNORECASE,
    ),
    "which actor?": re.compile(r"\b(?:nobody|somebody|anybody|everybody|whoever)\b", re.IGNORECASE),
    "how much of what?": re.compile(
        r"\bso (?:long|often|many|much|far)\b(?! (?:as|that))", re.IGNORECASE
    ),
    "a telegram": re.compile(r"(?:^|[.;] )(?:True|False|None)[:;,] "),
    "an old word": re.compile(
        r"\b(?:anew|once more|for ever|but for|(?:is|are|was|were) to be|shall|lets? go|besides)\b"
    ),
}
_CODE = re.compile(r"`[^`]*`|\{[^}]*\}|\[([^\]]*)\]\([^)]*\)|https?://\S+")
_SENTENCE_END = re.compile(r"(?<=[.:?!])\s+(?=[A-Z])|;\s|\s\|\s|\s-\s")
_OPENING = (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_WORD = re.compile(r"[A-Za-z][\w'-]*")


# -- phrases --------------------------------------------------------------------------------------


def suspects(prose: str) -> Iterator[str]:
    """Find the suspicious phrases of these sentences, each with its kind."""
    plain = _CODE.sub(lambda found: found[1] or "X", " ".join(prose.split()))
    for sentence in _SENTENCE_END.split(plain):
        for kind, pattern in SUSPECTS.items():
            if pattern.search(sentence.strip("-*#| ")):
                yield f"{kind}: {_cut(sentence)}"
        words = len(_WORD.findall(sentence))
        if words > SENTENCE_WORDS_MAX:
            yield f"{words} words in a sentence: {_cut(sentence)}"


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= 90 else f"{sentence[:87]}..."


# -- prose in files -------------------------------------------------------------------------------


def paragraphs(path: str, text: str) -> Iterator[tuple[int, int, str]]:
    """First line, last line and words of each piece of prose."""
    if path.endswith(".md"):
        yield from _of_markdown(text)
    elif path.endswith(".py"):
        yield from _of_python(text)


def _of_markdown(text: str) -> Iterator[tuple[int, int, str]]:
    fenced, held, first = False, list[str](), 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.startswith("```")
        fenced ^= fence
        begins = line.startswith(("|", "#", "- ", "* "))
        if held and (fenced or fence or begins or not line.strip()):
            yield first, number - 1, " ".join(held)
            held = []
        if line.strip() and not fenced and not fence and not line.startswith("|--"):
            first = first if held else number
            held.append(line)


def _of_python(text: str) -> Iterator[tuple[int, int, str]]:
    """Blocks of comments, docstrings, and strings of more than three words on one line."""
    held, first, last = list[str](), 0, 0
    opens = True  # the next token is the first of its statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        number = token.start[0]
        if token.type == tokenize.COMMENT and not token.string.startswith(
            ("# noqa", "# type", "#!")
        ):
            if held and number != last + 1:
                yield first, last, " ".join(held)
                held = []
            first, last = first if held else number, number
            held.append(token.string.lstrip("# "))
        elif token.type == tokenize.STRING:
            prefix, said = re.match(r"(\w*)(.*)", token.string, re.DOTALL).groups()
            one_line = "\n" not in said and "r" not in prefix.lower()
            if (opens or one_line) and len(_WORD.findall(said)) > 3:
                yield number, token.end[0], said.strip("\"'")
        opens = token.type in _OPENING or (opens and token.type in (tokenize.NL, tokenize.COMMENT))
    if held:
        yield first, last, " ".join(held)


# -- changes --------------------------------------------------------------------------------------


def git(*words: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def default_base(root: Path = ROOT) -> str:
    return git("merge-base", "HEAD", "main", root=root).strip() or "HEAD"


def changed_lines(base: str, root: Path = ROOT) -> dict[str, set[int]]:
    """Line numbers that are new since `base`, by path. Of an untracked file, all are."""
    found: dict[str, set[int]] = {}
    lines = set[int]()
    for line in git("diff", "-U0", "--no-color", base, root=root).splitlines():
        if line.startswith("+++ "):
            lines = found.setdefault(line[6:], set())
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            lines.update(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
    for path in git("ls-files", "--others", "--exclude-standard", root=root).splitlines():
        found[path] = set(range(1, 1_000_000))
    return {path: lines for path, lines in found.items() if (root / path).is_file()}


def hints(base: str, root: Path = ROOT) -> Iterator[str]:
    for path, lines in sorted(changed_lines(base, root).items()):
        if not path.endswith((".md", ".py")) or "_pb2" in path:
            continue
        for first, last, prose in paragraphs(path, (root / path).read_text(encoding="utf-8")):
            if not lines.isdisjoint(range(first, last + 1)):
                yield from (f"{path}:{first} {what}" for what in suspects(prose))


def main(words: list[str]) -> int:
    found = list(hints(words[0] if words else default_base()))
    if found:
        print(f"{len(found)} phrases to read again (docs/HOUSE_STYLE.md, Prose); only a hint:")
        print("\n".join(f"  {line}" for line in found[:PRINTED_MAX]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
