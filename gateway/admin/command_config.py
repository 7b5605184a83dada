"""The file of `--command-config`: Kafka's client keys, as Kafka's own tools take them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gateway.admin.client_settings import CLIENT_KEYS, PROTOCOL, SECRET_KEYS
from ledger.command_line.secret_files import others_read

_BYTES_MAX: Final = 1024 * 1024


class CommandConfigFault(Exception):
    """The file cannot be used: a line that names the fix, and never a value."""


def zookeeper_keys_of(written: str) -> dict[str, str]:
    """Return the keys of the file that begin with `zookeeper.`, which a command has checked."""
    from ledger.command_line.properties import parse_properties

    content, _ = _read(Path(written))
    found = {each.key: each.value.strip() for each in parse_properties(content)}
    return {key: value for key, value in found.items() if key.startswith("zookeeper.")}


def client_keys_of(written: str) -> dict[str, str]:
    """Return the keys of TLS and SASL of the file; its other keys have no effect here.

    A file without `security.protocol` asks for plain text, as in Kafka. Raises CommandConfigFault.
    """
    from ledger.command_line.properties import MalformedEscape, parse_properties

    content, is_private = _read(Path(written))
    try:
        found = {each.key: each.value.strip() for each in parse_properties(content)}
    except MalformedEscape as fault:
        raise CommandConfigFault(f"line {fault.line}: {fault}") from None
    keys = {key: value for key, value in found.items() if key in CLIENT_KEYS}
    secrets = sorted(keys.keys() & SECRET_KEYS)
    if secrets and not is_private:
        raise CommandConfigFault(f"other users can read its {secrets[0]}; run chmod 600 {written}")
    return {PROTOCOL: "PLAINTEXT"} | keys


def _read(file: Path) -> tuple[bytes, bool]:
    """Return the content, and whether only its owner can read it."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(_BYTES_MAX + 1)
    except OSError as error:
        raise CommandConfigFault(str(error.strerror)) from None
    except ValueError:
        raise CommandConfigFault("must be the name of a file") from None
    if len(content) > _BYTES_MAX:
        raise CommandConfigFault("is longer than 1 MiB")
    return content, not others_read(mode)
