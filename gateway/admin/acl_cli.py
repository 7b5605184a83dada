"""The commands `gateway acl ...`, modelled on kafka-acls.sh."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.access import CLUSTER, Operation, ResourceType
from gateway.admin import acl_shapes
from gateway.admin.confirm import confirm, confirm_protected, yes_on_option
from gateway.admin.requests import ask, bootstrap_option, yes_option
from ledger.command_line import units
from ledger.command_line.output import Output, output_option, usage
from ledger.command_line.program import CommandGroup, Value, option

if TYPE_CHECKING:
    from gateway.admin.acls import Wanted

_ALL = "*"
_LOOPBACK = "127.0.0.1"
# The operations that requests ask for on each type of resource. Source: Kafka, AclEntry.
_FITTING = {
    ResourceType.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    ResourceType.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    ResourceType.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS "
    "IDEMPOTENT_WRITE",
    ResourceType.TRANSACTIONAL_ID: "WRITE DESCRIBE TWO_PHASE_COMMIT",
    ResourceType.DELEGATION_TOKEN: "DESCRIBE",
    ResourceType.USER: "CREATE_TOKENS DESCRIBE_TOKENS",
}

F = TypeVar("F", bound=Callable[..., Any])

acl = CommandGroup("acl", "List, add, remove and explain ACLs: who may do what.")


def _word(text: str) -> str:
    return text.strip().upper().replace("-", "_")


def _operation(written: object) -> Operation:
    if isinstance(written, str) and _word(written) in Operation.__members__:
        return Operation[_word(written)]
    raise ValueError(f"must be one of {units.listed([each.lower() for each in Operation])}")


def _operations(written: object) -> tuple[Operation, ...]:
    return tuple(dict.fromkeys(_operation(each) for each in str(written).split(",")))


def _principal(written: object) -> str:
    kind, colon, name = str(written).partition(":")
    if not kind or not colon or not name:
        raise ValueError("must be a type and a name, such as User:alice, or User:* for every one")
    return str(written)


def _resource(written: object) -> tuple[ResourceType, str]:
    kind, colon, name = str(written).partition(":")
    found = ResourceType.__members__.get(_word(kind))
    if found is ResourceType.CLUSTER and (not colon or name in ("", CLUSTER.name)):
        return found, CLUSTER.name
    if found is None or found is ResourceType.CLUSTER or not name:
        kinds = units.listed(
            [f"{each.lower().replace('_', '-')}:NAME" for each in ResourceType if each != "CLUSTER"]
        )
        raise ValueError(f"must be cluster, or one of {kinds}; * as the name is every one")
    return found, name


def _address(written: object) -> str:
    from ipaddress import ip_address  # few ACLs have an address

    try:
        return str(written) if written == _ALL else str(ip_address(str(written)))
    except ValueError:
        raise ValueError(
            "must be an IP address, or * for every one; names of hosts and networks match no client"
        ) from None


_PRINCIPAL = Value("principal", _principal)
_RESOURCE = Value("resource", _resource)
_principal_argument = click.argument(
    "principal",
    metavar="PRINCIPAL",
    type=_PRINCIPAL,
    help="Type and name of the client, such as User:alice.",
)
_resource_argument = click.argument(
    "resource",
    metavar="RESOURCE",
    type=_RESOURCE,
    help="topic:NAME, group:NAME, transactional-id:NAME, delegation-token:NAME, user:NAME or "
    "cluster; * as the name is every one.",
)


def _host_option(text: str, default: str) -> Callable[[F], F]:
    kind = Value("address", _address)
    return option("--host", metavar="ADDRESS", type=kind, default=default, help=text)


def _filter_options(function: F) -> F:
    """Add the options that choose ACLs to a command that calls `_wanted`."""
    for each in (
        option("--principal", type=_PRINCIPAL, shown="all", help="Only ACLs of this principal."),
        option(
            "--operation",
            type=Value("operation", _operation),
            shown="all",
            help="Only ACLs for this operation, such as read.",
        ),
        option("--resource", type=_RESOURCE, shown="all", help="Only ACLs of this resource."),
        option("--prefix", is_flag=True, help="Only ACLs for names that begin with --resource."),
        option("--host", metavar="ADDRESS", shown="all", help="Only ACLs of this address."),
        option("--deny", is_flag=True, help="Only ACLs that deny."),
    ):
        function = each(function)
    return function


def _wanted(
    principal: str | None,
    operation: Operation | None,
    resource: tuple[ResourceType, str] | None,
    prefix: bool,
    host: str | None,
    deny: bool,
) -> Wanted:
    from gateway.admin.acls import Place, Wanted
    from gateway.core.acls import PatternType, Permission

    return Wanted(
        principal,
        host,
        operation,
        Permission.DENY if deny else None,
        Place(*resource) if resource else None,
        PatternType.PREFIXED if prefix else None,
    )


@acl.command("list")
@_filter_options
@option(
    "--match",
    is_flag=True,
    help="All ACLs that decide on --resource, also those of prefixes and of *.",
)
@bootstrap_option
@output_option(acl_shapes.LISTED)
def _list(
    principal: str | None,
    operation: Operation | None,
    resource: tuple[ResourceType, str] | None,
    prefix: bool,
    host: str | None,
    deny: bool,
    match: bool,
    bootstrap: str,
    output: Output,
) -> None:
    """List ACLs. Without options, list all."""
    if match and (resource is None or prefix):
        usage("--match needs --resource, and goes without --prefix", output)
    wanted = _wanted(principal, operation, resource, prefix, host, deny)._replace(match=match)

    from gateway.admin.acls import list_acls

    output.show(ask(bootstrap, output, lambda client: list_acls(client, wanted)))


@acl.command("add")
@_principal_argument
@click.argument(
    "operations",
    metavar="OPERATIONS",
    type=Value("operations", _operations),
    help="Operations with commas between them, such as read,describe; all is every one.",
)
@_resource_argument
@option("--prefix", is_flag=True, help="For all resources whose names begin with this one.")
@_host_option("Address of the client; * is every one.", _ALL)
@option("--deny", is_flag=True, help="Deny the operations; a denial wins over what is allowed.")
@yes_on_option
@bootstrap_option
@output_option(acl_shapes.ADDED)
def _add(
    principal: str,
    operations: tuple[Operation, ...],
    resource: tuple[ResourceType, str],
    prefix: bool,
    host: str,
    deny: bool,
    bootstrap: str,
    output: Output,
) -> None:
    """Add ACLs: allow or deny operations on a resource to a principal.

    Whoever may read, write, delete or alter a resource may describe it too.
    """
    kind, name = resource
    _check_fitting(operations, kind, output)
    if prefix and name == _ALL:
        usage("RESOURCE: * is every one without --prefix, and the first letter with it", output)
    rows = [
        {
            "principal": principal,
            "permission": "DENY" if deny else "ALLOW",
            "operation": each.value,
            "resource_type": kind.value,
            "resource_name": name,
            "pattern_type": "PREFIXED" if prefix else "LITERAL",
            "host": host,
        }
        for each in operations
    ]
    confirm_protected(f"changes what {principal} may do", output)

    from gateway.admin.acls import add_acls

    ask(bootstrap, output, lambda client: add_acls(client, rows))
    verb = "denied" if deny else "allowed"
    listed = ", ".join(row["operation"] for row in rows)
    shown = f"{kind.value}:{name}{'...' if prefix else ''}"
    output.done({"added": rows}, f"{principal} from {host} is {verb} {listed} on {shown}.")


def _check_fitting(operations: tuple[Operation, ...], kind: ResourceType, output: Output) -> None:
    """Refuse operations that no request asks for: their ACLs would decide nothing."""
    fitting = _FITTING[kind].split()
    wrong = [each for each in operations if each is not Operation.ALL and each not in fitting]
    if wrong:
        known = units.listed(["all", *(each.lower() for each in fitting)])
        shown = kind.lower().replace("_", "-")
        usage(f"OPERATIONS {wrong[0].lower()}: must be {known} for {shown}", output)


@acl.command("remove")
@_filter_options
@yes_option
@bootstrap_option
@output_option(acl_shapes.REMOVED)
def _remove(
    principal: str | None,
    operation: Operation | None,
    resource: tuple[ResourceType, str] | None,
    prefix: bool,
    host: str | None,
    deny: bool,
    yes: bool,
    bootstrap: str,
    output: Output,
) -> None:
    """Remove the ACLs that all given options match. At least one is needed."""
    wanted = _wanted(principal, operation, resource, prefix, host, deny)
    if not any((principal, operation, resource, host, deny)):
        usage("name the ACLs with --principal, --operation, --resource, --host or --deny", output)

    from gateway.admin.acls import list_acls, remove_acls

    found = ask(bootstrap, output, lambda client: list_acls(client, wanted))
    if found:
        confirm(yes, f"removes {len(found)} ACLs", "remove", output)
        found = ask(bootstrap, output, lambda client: remove_acls(client, wanted))
    lines = [
        f"Removed {row['permission']} {row['operation']} on {row['resource_type']}:"
        f"{row['resource_name']} ({row['pattern_type']}) to {row['principal']} from {row['host']}."
        for row in found
    ]
    output.done({"removed": found}, "\n".join(lines) or "No ACL matches.")


@acl.command("explain")
@_principal_argument
@click.argument(
    "operation",
    metavar="OPERATION",
    type=Value("operation", _operation),
    help="Operation, such as read.",
)
@_resource_argument
@_host_option("Address of the client.", _LOOPBACK)
@bootstrap_option
@output_option(acl_shapes.EXPLAINED)
def _explain(
    principal: str,
    operation: Operation,
    resource: tuple[ResourceType, str],
    host: str,
    bootstrap: str,
    output: Output,
) -> None:
    """Show whether a principal may do an operation, and the rule that decides.

    The gateway answers as it would for a request. Nothing is read or changed.
    """
    if operation is Operation.ALL:
        usage("all: name one operation, such as read", output)

    from gateway.admin.acls import Place, explain_acl

    place = Place(*resource)
    row = ask(
        bootstrap,
        output,
        lambda client: explain_acl(client, principal, host, operation, place),
    )
    verb = "may" if row["allowed"] else "may not"
    about = f"{operation.value} {place.kind.value}:{place.name}"
    output.done(row, f"{principal} from {host} {verb} {about}: {_reason(row)}.")


def _reason(row: dict[str, Any]) -> str:
    rule = str(row["rule"])
    reasons: dict[str, str] = {
        "SuperUser": "it is a super user",
        "MatchingAcl": f"{row['acl']}",
        "DefaultAllow": "no ACL matches the resource, and allow-everyone-if-no-acl-found is set",
        "DefaultDeny": "no ACL allows it",
        "Unreadable": "the gateway cannot read an ACL; its log has the reason",
    }
    return reasons.get(rule, rule)
