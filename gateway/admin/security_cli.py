"""The commands `gateway security ...`: rights at the systems beside the gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admin import security_shapes
from gateway.admin.requests import check_servers, zookeeper_option
from ledger.command_line.exit_codes import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
)
from ledger.command_line.output import Output, fail, output_option, usage
from ledger.command_line.program import CommandGroup, option
from ledger.command_line.progress import ProgressLine

if TYPE_CHECKING:
    from ledger.adapters.zookeeper.zookeeper_acls import AclReport

_CONNECT_S: Final = 10.0
_SESSION_MS: Final = 30_000  # the command holds no node, so a long session does no harm

security = CommandGroup("security", "Check and repair the ACLs of the nodes in ZooKeeper.")


@security.command("zookeeper")
@option("--check", is_flag=True, help="List nodes whose ACL is not as it should be. Exits with 1.")
@option("--apply", "applies", is_flag=True, help="Write the ACL of each such node.")
@zookeeper_option("Metadata of the cluster. ", envvar="GATEWAY_ZOOKEEPER", show_envvar=True)
@output_option(security_shapes.ACLS)
def _zookeeper(check: bool, applies: bool, zookeeper: str | None, output: Output) -> int:
    """Check or repair the ACLs of all nodes of a cluster.

    The identities are those of zookeeper.auth and zookeeper.read.auth, in the file of
    --command-config or in the variables GATEWAY_ZOOKEEPER_AUTH and GATEWAY_ZOOKEEPER_READ_AUTH.
    """
    import click

    from gateway.interrupt import run_interruptibly

    if check == applies:
        usage("pass either --check or --apply", output)
    if zookeeper is None or "://" in zookeeper:
        usage("pass --zookeeper host:port,host:port/chroot of a cluster", output)
    check_servers(zookeeper, output)
    try:
        report = run_interruptibly(_walk(zookeeper, applies, output))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    _show(report, applies, output)
    return EXIT_FAILED if report.left or not report.nodes else 0


async def _walk(zookeeper: str, applies: bool, output: Output) -> AclReport:
    """Return what is found. Ends the command if ZooKeeper cannot be reached."""
    from gateway.admin.zookeeper_access import REFUSED, command_access
    from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
    from ledger.command_line.zookeeper_settings import unreachable
    from ledger.errors import AccessDenied, InvalidArgument, LedgerError

    try:
        access = command_access()
    except InvalidArgument as fault:
        fail(EXIT_CONFIG, str(fault), "CONFIG", output)
    if access.identity is None:
        text = "zookeeper.auth is missing: name the cluster's identity in the file of "
        text += "--command-config, or set GATEWAY_ZOOKEEPER_AUTH"
        fail(EXIT_CONFIG, text, "CONFIG", output)
    try:
        store = await connect_zookeeper(
            zookeeper,
            access=access,
            session_ms=_SESSION_MS,
            connect_s=_CONNECT_S,
            make_root=False,
        )
        try:
            return await _with_progress(store.acls, applies)
        finally:
            await store.close()
    except AccessDenied as error:
        fail(EXIT_REFUSED, f"--zookeeper {zookeeper}: {error}", REFUSED, output)
    except LedgerError as error:
        text = unreachable(f"--zookeeper {zookeeper}", zookeeper, error)
        fail(EXIT_UNREACHABLE, text, "UNREACHABLE", output)


async def _with_progress(acls: Any, applies: bool) -> AclReport:
    progress = ProgressLine()

    def show(report: AclReport) -> None:
        progress.text(f"{report.nodes} nodes checked, {report.changed} changed")

    try:
        return await (acls.apply(show) if applies else acls.check(show))
    finally:
        progress.end()


def _show(report: AclReport, applies: bool, output: Output) -> None:
    refused = set(report.refused_paths)
    rows = [{"path": path, "state": "refused"} for path in report.refused_paths]
    for state, paths in (("open", report.open_paths), ("other", report.other_paths)):
        shown = "changed" if applies else state
        rows += [{"path": path, "state": shown} for path in paths if path not in refused]
    found: dict[str, Any] = {
        "nodes": report.nodes,
        "open": report.open,
        "other": report.other,
        "refused": report.refused,
        "changed": report.changed,
        "left": report.left,
        "paths": rows,
    }
    output.show(found, after=_sentence(report, applies))


def _sentence(report: AclReport, applies: bool) -> str:
    if report.nodes == 0:
        return "There is no node at this path."
    if applies:
        left = f"; {report.left} are left" if report.left else ""
        return f"{report.changed} of {report.nodes} nodes were repaired{left}."
    if not report.left:
        return f"All {report.nodes} nodes have the ACL of the cluster."
    return (
        f"{report.open} of {report.nodes} nodes are open, {report.other} differ; repair them by "
        "`gateway security zookeeper --apply`."
    )
