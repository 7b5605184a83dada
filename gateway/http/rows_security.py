"""The pages of security: users, ACLs, quotas and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.access import CLUSTER, Operation, Resource
from gateway.http.pages import Page, on_cluster
from gateway.http.views import audit, security, security_lists


def _on_configs(path: Mapping[str, str]) -> tuple[Operation, Resource]:
    """Need to describe the configs of the cluster, as DescribeClientQuotas does."""
    return Operation.DESCRIBE_CONFIGS, CLUSTER


def _on_alter(path: Mapping[str, str]) -> tuple[Operation, Resource]:
    """Need to change the cluster, as AlterUserScramCredentials does: audit lines name others."""
    return Operation.ALTER, CLUSTER


PAGES: Final[tuple[Page, ...]] = (
    Page(
        path="/security",
        name="security",
        title="Security",
        needs=on_cluster,
        view=security.security,
        command=security.command,
        in_menu=True,
    ),
    Page(
        path="/security/users",
        name="security_users",
        title="Users",
        needs=on_cluster,
        view=security_lists.users,
        command=security_lists.user_command,
    ),
    Page(
        path="/security/acls",
        name="security_acls",
        title="ACLs",
        needs=on_cluster,
        view=security_lists.acls,
        command=security_lists.acl_command,
    ),
    Page(
        path="/security/quotas",
        name="security_quotas",
        title="Quotas",
        needs=_on_configs,
        view=security_lists.quotas,
        command=security_lists.quota_command,
    ),
    Page(
        path="/security/audit",
        name="security_audit",
        title="Audit log",
        needs=_on_alter,
        view=audit.audit,
        command=audit.command,
    ),
)
