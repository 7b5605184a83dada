"""Writes pictures of each page, light and dark, and of commands, from a cluster of this machine.

Those of the pages of security are of a gateway with an authorizer.

python -m tests.browser.screenshots [NAME...]      writes docs/images/NAME-light.png, NAME-dark.png
                                                   and docs/images/terminal-NAME.svg

The records and groups are fixed; times of events and figures of this machine differ in each run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from gateway.http.rows import PAGES
from gateway.http.rows_security import PAGES as SECURE
from tests.browser.browser import Browser, Tab, Theme
from tests.browser.local_page import local_page
from tests.browser.png import smaller
from tests.browser.rig import EXAMPLES
from tests.browser.secure_content import secure_page
from tests.browser.terminal import COMMANDS, drawn
from tests.peers.install import ROOT
from tests.peers.processes import wait_until

IMAGES = ROOT / "docs" / "images"
BYTES_MAX = 120_000
THEMES: tuple[Theme, ...] = ("light", "dark")


def main(names: list[str]) -> int:
    """Write the pictures of these pages and commands, or of all. Returns 1 if one is too large."""
    wanted = [page.name for page in PAGES if not names or page.name in names]
    commands = [name for name in COMMANDS if not names or name in names]
    IMAGES.mkdir(exist_ok=True)
    secure = [name for name in wanted if name in {page.name for page in SECURE}]
    others = [name for name in wanted if name not in secure]
    too_large = False
    with tempfile.TemporaryDirectory() as directory, Browser() as browser:
        place = Path(directory)
        if secure:
            with secure_page(place / "secure") as origin:
                too_large |= _write_pictures(browser, origin, secure)
        if others or commands:
            with local_page(place) as local:
                _write_commands(local.bootstrap, commands)
                too_large |= _write_pictures(browser, local.origin, others)
    return int(too_large)


def _write_commands(bootstrap: str, names: Sequence[str]) -> None:
    for name in names:
        (IMAGES / f"terminal-{name}.svg").write_text(drawn(name, bootstrap))
        print(f"docs/images/terminal-{name}.svg")


def _write_pictures(browser: Browser, origin: str, names: Sequence[str]) -> bool:
    """Write the pictures of these pages. Returns True if one is too large."""
    too_large = False
    for theme, name in product(THEMES, names):
        with browser.tab(origin, theme=theme) as tab:
            tab.open(EXAMPLES[name])
            picture = smaller(_picture(tab))
        (IMAGES / f"{name}-{theme}.png").write_bytes(picture)
        print(f"docs/images/{name}-{theme}.png: {len(picture):,} bytes")
        too_large |= len(picture) >= BYTES_MAX
    return too_large


def _picture(tab: Tab) -> bytes:
    """Return a PNG of the window, once scripts have drawn the plots."""
    wait_until(lambda: tab.page.locator(".canvas > svg").count() == 0, "the plots")
    return tab.page.screenshot(animations="disabled")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
