"""The commands `gateway config ...`: a file of settings before a server starts with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from gateway.process import dev, serve
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_OK
from ledger.command_line.failure import print_failure
from ledger.command_line.output import Output, output_option
from ledger.command_line.program import Command, CommandGroup, Option, Value, flags_of, option
from ledger.command_line.settings import Settings
from ledger.command_line.settings import output_option as settings_output
from ledger.command_line.settings_shape import SHOWN
from ledger.command_line.shape import Shape, prints, text, whole

_OF: Final = {"dev": dev, "serve": serve}
_ZOOKEEPER: Final = ("zookeeper", "zookeeper.connect")
_CHECKED: Final = Shape(
    fields=(
        text("file", "The file."),
        text("command", "dev or serve: the command whose settings they are."),
        whole("settings", "Settings that the file has."),
        whole("warnings", "Keys without effect, each a line on stderr."),
    ),
)

config = CommandGroup("config", "Check a file of settings, and show the settings of a server.")


@config.command("check")
@click.argument("file", metavar="FILE", help="File in TOML, or *.properties as Kafka has it.")
@option(
    "--of",
    "of",
    type=Value("command", units.one_of(*_OF)),
    shown="serve if the file names ZooKeeper, else dev",
    help="Command that the file is for: dev or serve.",
)
@output_option(_CHECKED)
def _check(file: str, of: str | None, output: Output) -> int:
    """Check a file of settings as a start does, without a start.

    Prints one line for each fault, and exits with 78 if there is any. Connects to nothing and
    writes nothing. Variables count for `env:NAME` alone: flags and GATEWAY_... are not looked at.
    """
    settings = _settings_of(file, of or "dev", {})
    if of is None and _names_zookeeper(settings):
        settings = _settings_of(file, "serve", {})
    command = "serve" if settings.table is serve.TABLE else "dev"
    for warning in settings.warnings:
        print_failure("gateway", f"warning: {warning}", "WARNING", as_json=output.is_json)
    faults = _OF[command].faults_of(settings)
    for fault in faults:
        print_failure("gateway", fault, "CONFIG", as_json=output.is_json)
    if faults:
        return EXIT_CONFIG
    count = sum(not settings.is_default(row.name) for row in settings.table)
    found = {
        "file": file,
        "command": command,
        "settings": count,
        "warnings": len(settings.warnings),
    }
    output.done(found, f"{file}: no faults in {count} settings of `gateway {command}`")
    return EXIT_OK


def _settings_of(file: str | None, of: str, variables: dict[str, str] | None) -> Settings:
    module = _OF[of]
    command = module.dev if module is dev else module.serve
    words = [] if file is None else ["--config", file]
    return Settings(flags_of(command, words), module.TABLE, variables)


def _names_zookeeper(settings: Settings) -> bool:
    """Return whether the file has settings that only `gateway serve` has."""
    return any(f": {key}: " in each for key in _ZOOKEEPER for each in settings.faults) or any(
        key in settings.foreign for key in _ZOOKEEPER
    )


@prints(SHOWN)
def _show(**given: Any) -> int:
    """Print the settings of a server, from a file and the variables."""
    file: Path | None = given["config"]
    settings = _settings_of(None if file is None else str(file), given["of"], None)
    flags = settings.flags
    flags.print_config, flags.output = True, given["output"]
    code = dev.answered(settings)
    assert code is not None
    return code


config.add_command(
    Command(
        "show",
        params=[
            Option(
                ["--of"],
                type=Value("command", units.one_of(*_OF)),
                default="dev",
                help="Command whose settings are shown: dev or serve.",
            ),
            Option(
                ["--config"],
                metavar="FILE",
                help="File with settings, in TOML or, if its name ends in .properties, as Kafka's "
                "server.properties.",
            ),
            settings_output(),
        ],
        help="""Show each setting with its value and origin, from a file and the variables.

        The same as --print-config of the command, which also takes flags. Secrets are hidden.
        """,
        callback=_show,
    )
)
