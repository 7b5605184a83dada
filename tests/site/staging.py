"""The pages as the site's generator takes them: docs/ and a few files of the top, below build/.

Links between pages stay links. A link to code becomes its text, with the path as a tooltip, or a
link to where the code is published. A fence keeps only its language: Python-Markdown would take
"```sh not run: why" for text.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path, PurePosixPath

from tests.house import tree_files

PAGES = "docs/"
# Pages from outside of docs/, by their place on the site.
BESIDE: Mapping[str, str] = {
    "README.md": "project/README.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
}
_FENCE = re.compile(r"^(?P<mark>\s*```+)(?P<language>[\w-]+) .*$")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]+)\]\((?P<target>[^)\s]+)\)")


def places(files: Iterable[str]) -> dict[str, str]:
    """Return where files of the tree are on the site. Others are not on it."""
    found = {path: path.removeprefix(PAGES) for path in files if path.startswith(PAGES)}
    return found | {path: BESIDE[path] for path in files if path in BESIDE}


def stage(root: Path, target: Path, source: str = "") -> list[str]:
    """Write all pages and pictures below `target`. Returns the paths of the pages there.

    `source` is the address below which the files of the tree are published; empty if they are not.
    """
    files = tree_files(root)
    known = places(files)
    everything = {*files, *(str(up) for path in files for up in PurePosixPath(path).parents)}
    pages: list[str] = []
    for path, place in known.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        if not path.endswith(".md"):
            shutil.copyfile(root / path, target / place)
            continue
        text = (root / path).read_text()
        (target / place).write_text(page(text, path, known, everything.__contains__, source))
        pages.append(place)
    return sorted(pages)


def page(
    text: str,
    path: str,
    known: Mapping[str, str],
    exists: Callable[[str], bool],
    source: str = "",
) -> str:
    """Return a page of the site; `path` is its file in the tree."""

    def link(found: re.Match[str]) -> str:
        return _link(found, path, known, exists, source)

    return "".join(
        part if is_code else _LINK.sub(link, part) for is_code, part in _parts(text.splitlines())
    )


def _parts(lines: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Return blocks of code and what is between them: a link may go over two lines."""
    fence = ""
    held: list[str] = []
    for line in lines:
        mark = line.strip()
        if fence:
            held.append(line)
            if mark == fence:
                yield True, _joined(held)
                fence, held = "", []
        elif mark.startswith("```"):
            yield False, _joined(held)
            fence = "`" * (len(mark) - len(mark.lstrip("`")))
            held = [_FENCE.sub(r"\g<mark>\g<language>", line)]
        else:
            held.append(line)
    yield bool(fence), _joined(held)


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _link(
    found: re.Match[str],
    path: str,
    known: Mapping[str, str],
    exists: Callable[[str], bool],
    source: str,
) -> str:
    file, hash_mark, anchor = found["target"].partition("#")
    if "://" in file or file.startswith("mailto:"):
        return found[0]
    anchor = re.sub("-+", "-", anchor)  # GitHub keeps several in a row, Python-Markdown does not
    if not file:
        return f"[{found['text']}](#{anchor})"
    there = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
    if there in known:
        target = posixpath.relpath(known[there], posixpath.dirname(known[path]) or ".")
        return f"{found['image']}[{found['text']}]({target}{hash_mark}{anchor})"
    if not exists(there):
        return found[0]  # a broken link, which the generator reports
    if source:
        return f"[{found['text']}]({source.rstrip('/')}/{there})"
    return f'<span title="{escape(there)}">{found["text"]}</span>'
