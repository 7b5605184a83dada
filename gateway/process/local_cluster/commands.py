"""The commands `gateway cluster up`, `down`, `status` and `kill`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from ledger.command_line.output import Output, emit, fail, output_option, usage
from ledger.command_line.program import Command, Value, nearest, option
from ledger.command_line.progress import ProgressLine
from ledger.command_line.shape import Column, Kind, Shape, Tone, text, whole

if TYPE_CHECKING:
    from gateway.process.local_cluster.faults import LocalClusterError
    from gateway.process.local_cluster.launcher import Launcher
    from gateway.process.local_cluster.services import Size
    from gateway.process.local_cluster.state import State

_COUNT_MAX: Final = 9
_PORT_MAX: Final = 65_535 - _COUNT_MAX

_PROCESSES: Final = Shape(
    fields=(
        text("bootstrap", "Addresses of the gateways, for clients."),
        text("zookeeper", "Address of ZooKeeper."),
        text("directory", "Where data, logs and the state are."),
    ),
    rows="processes",
    columns=(
        text("name", "Name of the process."),
        text(
            "state",
            "running, dead (it ended by itself or was killed) or stopped.",
            tones={"running": Tone.good, "dead": Tone.bad},
        ),
        whole("pid", "Its process id; null if it does not run.", nullable=True),
        text("address", "Where it listens; null if nowhere.", nullable=True),
        whole("uptime_s", "Seconds since its start; null if it does not run.", nullable=True),
        text("log", "File with its output."),
    ),
)
_STOPPED: Final = Shape(fields=(Column("stopped", Kind.texts, "Names of the processes that ran."),))
_KILLED: Final = Shape(
    fields=(Column("killed", Kind.texts, "Names of the processes that were killed."),)
)

_data_option = option(
    "--data",
    type=Value("dir", units.path),
    envvar="GATEWAY_CLUSTER_DATA",
    show_envvar=True,
    default="data/cluster",
    help="Directory of the cluster: data, logs, process ids.",
)
_count = Value("count", units.whole(1, _COUNT_MAX))


@click.command("up", cls=Command)
@_data_option
@option(
    "--port",
    type=Value("port", units.whole(1, _PORT_MAX)),
    shown="as before, 9092 at first",
    help="Kafka port of the first gateway; the others follow.",
)
@option("--gateways", type=_count, shown="as before, 3 at first", help="Number of gateways.")
@option("--bookies", type=_count, shown="as before, 4 at first", help="Number of bookies.")
@option(
    "--zookeeper-jars",
    "jars",
    type=Value("dir", units.path),
    envvar="GATEWAY_ZOOKEEPER_JARS",
    show_envvar=True,
    shown="where ZOOKEEPER_HOME and Debian have them",
    help="Directory with ZooKeeper's jars.",
)
@option(
    "--http-port",
    type=Value("port", units.whole(1, _PORT_MAX)),
    shown="as before, none at first",
    help="Port of the first gateway's web page; the others follow.",
)
@option(
    "--http-write",
    is_flag=True,
    help="Serve changes there too: records, topics, groups, and killing these processes.",
)
@option(
    "--foreground",
    is_flag=True,
    help="Stay, start again what ends, and stop all at Ctrl-C.",
)
@output_option(_PROCESSES)
def up(
    data: Path,
    port: int | None,
    gateways: int | None,
    bookies: int | None,
    jars: Path | None,
    http_port: int | None,
    http_write: bool,
    foreground: bool,
    output: Output,
) -> None:
    """Start a cluster on this machine, or those of its processes that have ended.

    It is ZooKeeper, bookies, an auditor and gateways, and needs Java and ZooKeeper's jars. The
    command returns when all serve. Repeat it to start again what was killed. The processes accept
    connections of this machine only, without passwords.
    """
    from gateway.process.local_cluster.faults import LocalClusterError
    from gateway.process.local_cluster.launcher import Launcher
    from gateway.process.local_cluster.services import Web

    if http_write and http_port is None:
        usage("--http-write needs --http-port", output)
    line = ProgressLine()
    launcher = Launcher(data, line.text, jars=jars, tied=foreground)
    web = None if http_port is None else Web(http_port, http_write)
    try:
        state = launcher.up(_size(launcher, gateways, bookies), port, web)
        line.clear()
        if foreground:
            _stay(launcher, state)
        else:
            _show(state, launcher.directory, output, _ready(state, data))
    except KeyboardInterrupt:
        line.clear()
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except LocalClusterError as error:
        line.clear()
        _fail(error, output)


def _size(launcher: Launcher, gateways: int | None, bookies: int | None) -> Size | None:
    from gateway.process.local_cluster.services import Size
    from gateway.process.local_cluster.state import load

    if gateways is None and bookies is None:
        return None
    before = load(launcher.directory)
    size = Size() if before is None else before.size
    return Size(gateways or size.gateways, bookies or size.bookies)


def _ready(state: State, data: Path) -> str:
    return f"\naddresses: . {data / 'env'}\ncluster started: bootstrap.servers={state.bootstrap}"


def _stay(launcher: Launcher, state: State) -> None:
    from gateway.process.local_cluster.watch import Watch

    for name, process in state.processes.items():
        emit(f"{name:<14} pid {process.pid:<8} log {launcher.log(name)}")
    emit(f"{'addresses':<14} . {launcher.directory / 'env'}")
    emit(f"cluster started: bootstrap.servers={state.bootstrap}")
    try:
        Watch(launcher, emit).stay()
    finally:
        launcher.down()


def _show(state: State, directory: Path, output: Output, after: str = "") -> list[dict[str, Any]]:
    from gateway.process.local_cluster.launcher import rows

    processes = rows(state, directory)
    found = {
        "bootstrap": state.bootstrap,
        "zookeeper": state.zookeeper,
        "directory": str(directory),
        "processes": processes,
    }
    output.show(found, after=after)
    return processes


@click.command("down", cls=Command)
@_data_option
@output_option(_STOPPED)
def down(data: Path, output: Output) -> None:
    """Stop the cluster of this machine; its data stay.

    Gateways hand over and stop first, then the bookies, then ZooKeeper. What does not stop within a
    minute is killed.
    """
    from gateway.process.local_cluster.faults import LocalClusterError
    from gateway.process.local_cluster.launcher import Launcher
    from gateway.process.local_cluster.state import load_existing

    line = ProgressLine()
    try:
        load_existing(data)  # without making the directory
        stopped = Launcher(data, line.text, jars=None).down()
    except LocalClusterError as error:
        _fail(error, output)
    finally:
        line.clear()
    count = len(stopped)
    sentence = f"Stopped {count} processes." if count else "Nothing was running."
    output.done({"stopped": stopped}, sentence)


@click.command("status", cls=Command)
@_data_option
@output_option(_PROCESSES)
def status(data: Path, output: Output) -> None:
    """Show the processes of the cluster of this machine.

    The exit code is 1 if one of them has ended.
    """
    from gateway.process.local_cluster.faults import LocalClusterError
    from gateway.process.local_cluster.state import load_existing

    try:
        found = _show(load_existing(data), data.absolute(), output)
    except LocalClusterError as error:
        _fail(error, output)
    dead = [row["name"] for row in found if row["state"] == "dead"]
    if dead:
        fix = "`gateway cluster up` starts what has ended"
        fail(EXIT_FAILED, f"dead: {', '.join(dead)}; {fix}", "DEAD", output)


@click.command("kill", cls=Command)
@click.argument(
    "names",
    metavar="NAME...",
    nargs=-1,
    required=True,
    help="Processes to kill: zookeeper, audit, gateway-1, bookie-2 and so on.",
)
@_data_option
@output_option(_KILLED)
def kill(names: Sequence[str], data: Path, output: Output) -> None:
    """Kill processes of the cluster of this machine, as kill -9 does.

    Only processes that `gateway cluster up` started are killed, never another one that has its
    process id by now.
    """
    from gateway.process.local_cluster import launcher
    from gateway.process.local_cluster.faults import LocalClusterError
    from gateway.process.local_cluster.state import load_existing

    try:
        known = load_existing(data).size.names
        for name in names:
            if name not in known:
                hint = nearest(name, known) or f"; there are {', '.join(known)}"
                usage(f"there is no process {name!r}{hint}", output)
        launcher.kill(data, names)
    except LocalClusterError as error:
        _fail(error, output)
    output.done({"killed": list(names)}, f"Killed {', '.join(names)}.")


def _fail(error: LocalClusterError, output: Output) -> NoReturn:
    fail(error.exit_code, str(error), error.code, output)
