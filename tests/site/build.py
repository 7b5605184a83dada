"""Builds the site of the documents: `make docs` (SOURCE=, where the code is published).

python -m tests.site.build [--source https://host/tree/main]      writes build/site

It fails if a page is missing in the navigation, if a link leads nowhere, or if a page would load
anything from another server.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.house import ROOT
from tests.site import built, llms, navigation, staging

BUILD = ROOT / "build"
BUILD_S_MAX = 120.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build(root: Path, target: Path, source: str = "") -> list[str]:
    """Build the site of this tree below `target`, as `site`. Returns what is wrong with it."""
    pages, site = target / "docs", target / "site"
    for each in (pages, site):
        shutil.rmtree(each, ignore_errors=True)
    staged = staging.stage(root, pages, source)
    found = navigation.navigation()
    faults = list(navigation.faults(found, staged))
    if faults:
        return faults
    config = target / "mkdocs.yml"
    shutil.copyfile(navigation.CONFIG, config)
    faults = _generate(config)
    if faults:
        return faults
    for page in staged:
        shutil.copyfile(pages / page, site / page)
    text = llms.text(found, lambda path: (pages / path).read_text())
    (site / "llms.txt").write_text(text)
    return list(built.faults(site))


def _generate(config: Path) -> list[str]:
    """Run the generator. Returns the lines of its output if it failed."""
    words = ["-m", "zensical", "build", "--strict", "--clean", "--config-file", str(config)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    output = _COLOUR.sub("", done.stdout + done.stderr)
    if done.returncode == 0 and "Warning:" not in output:
        return []
    return output.splitlines() or [f"zensical ended with {done.returncode}"]


def main(words: list[str]) -> int:
    """Build the site. Returns 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.site.build")
    parser.add_argument("--source", default="", help="address below which the code is published")
    faults = build(ROOT, BUILD, parser.parse_args(words).source)
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    pages = len(list((BUILD / "site").rglob("*.html")))
    print(f"{pages} pages: open {(BUILD / 'site/index.html').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
