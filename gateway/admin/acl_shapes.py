"""The shapes of what the commands `gateway acl ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Column, Shape, Tone, text, truth, whole

_TONES: Final = {"ALLOW": Tone.good, "DENY": Tone.bad}
_ACL: Final[tuple[Column, ...]] = (
    text("principal", "Type and name of the client, such as User:alice; User:* is every one."),
    text("permission", "ALLOW or DENY.", tones=_TONES),
    text("operation", "Kafka's name of the operation; ALL stands for each."),
    text("resource_type", "Kafka's name of the type of resource.", heading="TYPE"),
    text("resource_name", "Name of the resource, or how it begins.", heading="RESOURCE"),
    text(
        "pattern_type",
        "LITERAL: the resource of this name, or each if it is `*`; PREFIXED: those that begin so.",
        heading="PATTERN",
    ),
    text("host", "Address of the client; `*` is every one."),
)
LISTED: Final = Shape(_ACL)
ADDED: Final = Shape(_ACL, rows="added")
REMOVED: Final = Shape(_ACL, rows="removed")
EXPLAINED: Final = Shape(
    fields=(
        text("principal", "The client that was asked about."),
        text("host", "Its address."),
        text("operation", "Kafka's name of the operation."),
        text("resource_type", "Kafka's name of the type of resource."),
        text("resource_name", "Name of the resource."),
        truth("allowed", "Whether the client may do it."),
        text(
            "rule",
            "What decided: SuperUser, MatchingAcl, DefaultAllow or DefaultDeny; Unreadable if the "
            "gateway cannot read an ACL.",
        ),
        text("acl", "The ACL that decided, in words; null if none did.", nullable=True),
        whole("node_id", "The gateway that answered."),
    )
)
