"""Lets a person edit the file of profiles: a copy first, which is installed only if it is valid."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.admin.profile_file import install, locked, text_of
from gateway.admin.profiles import ProfileFault, parse, read
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_FAILED

_TEMPLATE: Final = """\
# Profiles of `gateway`: where its commands connect, and how.

# current = "local"

# [profiles.local]
# bootstrap = "127.0.0.1:9092"
# zookeeper = "127.0.0.1:2181"
# schema_registry = "http://127.0.0.1:8081"
# output = "table"                # or wide, json, jsonl, csv
# color = "auto"                  # or always, never
# protected = false

# [profiles.local.tls]
# bookies = "/etc/bookie-certificates"
# security.protocol = "PLAINTEXT"
"""


class EditRefused(Exception):
    """The file was not changed. The text names the reason, and the file with what was typed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def edit(path: Path) -> bool:
    """Open the file in the user's editor. Returns whether it was changed.

    Raises EditRefused, ProfileFault if the file cannot be read, and OSError if it cannot be
    written. The typed text then stays in a file of its own, which the error names.
    """
    with locked(path) as target:
        before = text_of(target)
    directory = tempfile.mkdtemp(dir=target.parent, prefix=".edit-")
    copy = Path(directory) / target.name
    offered = before or _TEMPLATE
    done = False
    try:
        install(copy, offered)
        code = _run(_editor(), copy)
        if code:
            typed = "" if _is_unchanged(copy, offered) else f"; your text is in {copy}"
            message = f"the editor ended with {code}, so {target} was not changed{typed}"
            raise EditRefused(message, EXIT_FAILED)
        changed = not _is_unchanged(copy, offered)
        if changed:
            _install_edited(target, copy, before)
        done = True
        return changed
    finally:
        if done or _is_unchanged(copy, offered):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            copy.chmod(0o600)  # some editors make a new file


def _is_unchanged(copy: Path, offered: str) -> bool:
    try:
        return not copy.is_file() or text_of(copy) == offered
    except ProfileFault:
        return False


def _install_edited(target: Path, copy: Path, before: str) -> None:
    kept = f"; {target} was not changed, and your text is in {copy}"
    try:
        text, _ = read(copy)
        parse(copy, text)
    except ProfileFault as fault:
        raise EditRefused(f"{fault}{kept}", EXIT_CONFIG) from None
    with locked(target):
        if text_of(target) != before:
            raise EditRefused(f"another command changed the profiles meanwhile{kept}", EXIT_FAILED)
        install(target, text)


def _editor() -> Sequence[str]:
    for name in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(name, ""))
        except ValueError as error:
            raise EditRefused(f"{name}: {error}", EXIT_CONFIG) from None
        if words:
            return words
    return ["vi"]


def _pass_over(signal_number: int, frame: object) -> None:
    """Go on waiting."""


def _run(words: Sequence[str], copy: Path) -> int:
    """Run the editor, and return its exit code.

    Ctrl-C is for the editor alone: a handler of ours is not inherited.
    """
    kept = signal.signal(signal.SIGINT, _pass_over)
    try:
        return subprocess.run([*words, copy], check=False).returncode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{words[0]}: {reason}; name your editor by VISUAL or EDITOR"
        raise EditRefused(message, EXIT_CONFIG) from None
    finally:
        signal.signal(signal.SIGINT, kept)
