"""What the documents hold: links, code blocks, tables; and where they and the code disagree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.house import ROOT, Source

RUN = "sh"
NOT_RUN = "sh not run: "
_FENCE = re.compile(r"^```(.*)$")
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^`(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`$")
_PLACE = re.compile(
    r"`((?:gateway|ledger|subscriptions|tests|compose|docs)/[\w./{}*-]*[\w*}/])(?::\d+)?`"
)
_SPEAK_OF_DOCUMENTS = {"tests/test_house.py", "tests/house.py", "tests/site/test_pages.py"}
_ELSEWHERE = re.compile(r"\b(?:correction|trap|reliability|architecture section) [A-Z]?\d+\b")
_SHELLS = {"bash", "shell", "console", "zsh", "shell-session"}


@dataclass(frozen=True)
class Block:
    """One fenced block; `info` is all that follows the opening fence."""

    path: str
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]


def code_blocks(document: Source) -> list[Block]:
    blocks: list[Block] = []
    info, start, held = "", 0, list[str]()
    for number, line in enumerate(document.lines, 1):
        fence = _FENCE.match(line)
        if not fence:
            held.append(line)
        elif start:
            blocks.append(Block(document.path, start, info, "\n".join(held) + "\n"))
            start = 0
        else:
            info, start, held = fence[1].strip(), number, []
    assert not start, f"{document.path}:{start} a fence that never closes"
    return blocks


def documents(root: Path = ROOT) -> list[Source]:
    """README, every file of docs/, and the notes that lie beside the things they speak of."""
    paths = sorted(
        [
            root / "README.md",
            root / "CONTRIBUTING.md",
            root / "CHANGELOG.md",
            *root.glob("docs/**/*.md"),
            *root.glob("compose/*.md"),
        ]
    )
    return [Source(p.relative_to(root).as_posix(), p.read_text()) for p in paths if p.exists()]


def unmarked_blocks(document: Source) -> Iterator[str]:
    """Shell blocks are run by a test, or say why not."""
    for block in code_blocks(document):
        place = f"{block.path}:{block.line}"
        if block.language in _SHELLS:
            yield f"{place} write ```sh (a test runs it) or ```sh not run: why"
        said = block.info.startswith(NOT_RUN) and len(block.info) > len(NOT_RUN) + 8
        if block.language == "sh" and block.info != RUN and not said:
            yield f"{place} ```{block.info}: neither run nor `not run: why`"


def broken_links(document: Source, sources: Sequence[Source], root: Path = ROOT) -> Iterator[str]:
    """Links lead to files that exist; `` [`Name.method`](file.py) `` to what the file defines."""
    by_path = {source.path: source for source in sources}
    fenced = False
    for number, line in enumerate(document.lines, 1):
        fenced ^= line.startswith("```")
        if fenced:
            continue
        for link in _LINK.finditer(line):
            yield from _broken(document, number, link["text"], link["target"], by_path, root)
        for place in _PLACE.findall(line):
            if not _exists(place, root):
                yield document.at(number, f"`{place}` does not exist")


def _broken(
    document: Source,
    number: int,
    text: str,
    target: str,
    by_path: dict[str, Source],
    root: Path,
) -> Iterator[str]:
    if re.match(r"https?://", target):
        return
    file, _, anchor = target.partition("#")
    path = _resolved(PurePosixPath(document.path).parent, file) if file else document.path
    if not (root / path).exists():
        yield document.at(number, f"{target} does not exist")
        return
    code = _CODE.match(text)
    source = by_path.get(path)
    is_function = code is not None and not code["name"].endswith(".py")
    if source is not None and code and is_function and code["name"] not in defined_names(source):
        yield document.at(number, f"{path} defines no {code['name']}")
    if anchor and path.endswith(".md") and anchor not in anchors((root / path).read_text()):
        yield document.at(number, f"{path} has no heading for #{anchor}")


def _resolved(start: PurePosixPath, file: str) -> str:
    parts: list[str] = []
    for part in (start / file).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _exists(place: str, root: Path) -> bool:
    """Globs and `{a,b}` must each match something."""
    found = re.search(r"\{([^}]*)\}", place)
    if found:
        choices = found[1].split(",")
        return all(_exists(place.replace(found[0], choice, 1), root) for choice in choices)
    if "*" in place:
        return any(root.glob(place))
    return (root / place).exists()


def unreachable(found: Sequence[Source]) -> list[str]:
    """Documents that no other document links to."""
    linked = {
        _resolved(PurePosixPath(document.path).parent, link["target"].partition("#")[0])
        for document in found
        for link in _LINK.finditer(document.text)
        if "://" not in link["target"]
    }
    return [
        f"{document.path}:1 no other document links here"
        for document in found
        if document.path.startswith("docs/") and document.path not in linked
    ]


def anchors(text: str) -> set[str]:
    """The names that headings get where Markdown is shown."""
    headings = re.findall(r"^#+\s+(.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {re.sub(r"\s", "-", heading.strip()) for heading in plain}


def defined_names(source: Source) -> set[str]:
    """Functions, classes, methods, attributes and constants, dotted from the module's top."""
    names: set[str] = set()

    def inherited(node: ast.ClassDef) -> set[str]:
        """What its bases in this file define; they stand above it."""
        bases = tuple(f"{ast.unparse(base)}." for base in node.bases)
        return {name.split(".", 1)[1] for name in names if bases and name.startswith(bases)}

    def collect(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
                    names.update(f"{prefix}{node.name}.{name}" for name in inherited(node))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + t.id for t in targets if isinstance(t, ast.Name))
            elif isinstance(node, (ast.If, ast.Try)):
                collect(node.body, prefix)
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                names.update(prefix + name for name in _set_on_self(node))

    collect(source.tree.body, "")
    return names


def _set_on_self(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield node.attr


def unknown_documents(source: Source, root: Path = ROOT) -> Iterator[str]:
    """A document that code names is one of ours."""
    if source.path in _SPEAK_OF_DOCUMENTS:
        return
    known = {path.name for path in (*root.glob("docs/**/*.md"), *root.glob("*.md"))}
    for number, line in enumerate(source.lines, 1):
        for name in re.findall(r"\b([\w-]+\.md)\b", line):
            if name not in known:
                yield source.at(number, f"{name} is no document of this tree")
        for words in _ELSEWHERE.findall(line):
            yield source.at(number, f"`{words}` points to a page that is not in this tree")
