"""What the coordinator says of groups, and why it cannot be asked."""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.group_members import MemberView, State


class Refused(Exception):
    """The group cannot be asked now; `code` tells the client why and what to do."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class GroupView(NamedTuple):
    """A group as DescribeGroups shows it."""

    state: State
    protocol_type: str
    protocol: str
    members: tuple[MemberView, ...]


class GroupListing(NamedTuple):
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: State
    kind: str = "classic"  # as ListGroups calls the group's type
