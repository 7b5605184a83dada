"""The results of the coordinator about groups, and its refusal."""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import ConsumerState
from gateway.core.group_members import MemberView, State

GroupState = State | ConsumerState
"""The state of a group of either protocol. Its value is the name that Kafka's tools show."""

CLASSIC_GROUP: Final = "classic"
CONSUMER_GROUP: Final = "consumer"
"""The types of groups in ListGroups."""


class Refused(Exception):
    """A refusal of a request by the coordinator. `code` is the error code for the client."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class GroupView(NamedTuple):
    """A group as DescribeGroups returns it."""

    state: State
    protocol_type: str
    protocol: str
    members: tuple[MemberView, ...]


class GroupListing(NamedTuple):
    """A group as ListGroups returns it."""

    group_id: str
    protocol_type: str
    state: GroupState
    kind: str = CLASSIC_GROUP  # the type of the group in ListGroups
