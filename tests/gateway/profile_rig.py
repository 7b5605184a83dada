"""Commands with a file of profiles of their own, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.process.cli import program

SECRET = "hunter2-s3cr3t"


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """The path of the file of profiles, in a directory that does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GATEWAY_PROFILE", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "ledger-gateway" / "config.toml"


def write(file: Path, text: str, mode: int = 0o600) -> None:
    """Write the file of profiles as a person would."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def gateway(*words, stdin="", **environment):
    """Exit code, stdout and stderr of a command."""
    done = CliRunner().invoke(program, words, input=stdin, env=environment, prog_name="gateway")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def origins(*words, **environment):
    """The value, origin and source of each setting, by `profile show --origin`."""
    code, out, errors = gateway("profile", "show", "--origin", "-o", "json", *words, **environment)
    assert code == 0, errors
    return {row["key"]: (row["value"], row["origin"], row["from"]) for row in json.loads(out)}
