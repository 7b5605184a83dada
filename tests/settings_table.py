"""The settings and API tables of the documents, written from the code.

`python -m tests.settings_table` rewrites the part of docs/OPERATING.md between its markers, and
docs/settings.md, which `tests.settings_reference` makes.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence

from tests import settings_reference
from tests.house import ROOT, Row, Source, read_sources, tree_files

DOCUMENT = ROOT / "docs/OPERATING.md"
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
_HEAD = "| setting | type | default | why |\n|---|---|---|---|"


def config_paths(paths: Sequence[str]) -> list[str]:
    wanted = re.compile(r"^(gateway/config|(ledger|subscriptions)/(\w+/)?(grpc_)?config)\.py$")
    return [path for path in paths if wanted.match(path)]


def table(sources: Sequence[Source]) -> str:
    """One section for each settings dataclass, in the order of files and lines."""
    parts: list[str] = []
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and any(
                "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                parts.append(_section(source, node))
    return "\n\n".join(parts)


def _section(source: Source, node: ast.ClassDef) -> str:
    rows = [_row(source, field) for field in node.body if isinstance(field, ast.AnnAssign)]
    said = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    head = f"**`{node.name}`**, [`{source.path}`](../{source.path}). {said}"
    return "\n".join([head, "", _HEAD, *rows])


def _row(source: Source, field: ast.AnnAssign) -> str:
    name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
    value = "" if field.value is None else _default(field.value)
    cells = (f"`{name}`", kind, value, _comment(source, field))
    return f"| {' | '.join(cell.replace('|', ' or ') for cell in cells)} |"


def _default(node: ast.expr) -> str:
    """As written, sums worked out."""
    text = ast.unparse(node)
    if re.fullmatch(r"[\d_ *+-]+", text):
        number = eval(compile(ast.Expression(node), "default", "eval"))  # digits and * + - only
        return f"{number:,}".replace(",", " ")
    factory = re.fullmatch(r"field\(default_factory=(\w+)\)", text)
    return f"see {factory[1]}" if factory else f"`{text}`"


def _comment(source: Source, field: ast.AnnAssign) -> str:
    last = field.end_lineno or field.lineno
    text = "\n".join(source.lines[field.lineno - 1 : last]) + "\n"
    words: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                words.append(token.string.lstrip("# "))
    except (tokenize.TokenError, IndentationError):
        pass
    return " ".join(words)


def differences(sources: Sequence[Source]) -> Iterator[str]:
    """What the document's table says otherwise than the code."""
    wanted = table([s for s in sources if s.path in config_paths([s.path])]).splitlines()
    text = DOCUMENT.read_text()
    if BEGIN not in text or END not in text:
        yield "docs/OPERATING.md:1 has no settings markers"
        return
    shown = text.split(BEGIN)[1].split(END)[0].strip().splitlines()
    first = text[: text.index(BEGIN)].count("\n") + 3
    for number, (is_there, should) in enumerate(zip(shown, wanted, strict=False), first):
        if is_there != should:
            yield f"docs/OPERATING.md:{number} run `python -m tests.settings_table`: {should}"
    if len(shown) != len(wanted):
        yield f"docs/OPERATING.md:{first} run `python -m tests.settings_table`: rows are missing"


def api_row(row: Row, header: str) -> str:
    """The row of an API in docs/NOT_DONE.md; its last cell is what the header lists as not done."""
    first, last = row.versions.start, row.versions.stop - 1
    served = f"v{first}" if first == last else f"v{first}-v{last}"
    missing = re.search(r"Not done:((?:[^.]|\.(?=\S))*)\.", header.replace("\n", " "))
    cell = f" {' '.join(missing[1].split())}" if missing else ""
    return f"| {row.key} | [{row.name}](../{row.path}) | {served} |{cell} |"


def main() -> int:
    sources = read_sources(config_paths(tree_files()))
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(sources)}\n\n{END}{after}")
    settings_reference.PAGE.write_text(settings_reference.page(settings_reference.PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
