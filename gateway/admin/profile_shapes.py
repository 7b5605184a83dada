"""The shapes of what the commands `gateway profile ...` print."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, pairs, text, truth

_FILE: Final = text("file", "The file of all profiles.")

CREATED: Final = Shape(
    fields=(
        text("created", "Name of the profile."),
        _FILE,
        truth("current", "Whether it is the current profile."),
    )
)
USED: Final = Shape(
    fields=(text("current", "Name of the current profile; null if there is none.", nullable=True),)
)
LISTED: Final = Shape(
    (
        text("name", "Name of the profile."),
        truth("current", "Whether it is the current profile."),
        truth("protected", "Whether destructive commands ask for its name."),
        text("bootstrap", "Servers to connect to; null if it names none.", nullable=True),
        text("zookeeper", "ZooKeeper servers; null if it names none.", nullable=True),
    )
)
SHOWN: Final = Shape(
    fields=(
        text("name", "Name of the profile."),
        truth("current", "Whether it is the current profile."),
        pairs("settings", "Its settings. Secrets are hidden."),
    )
)
VALUES: Final = Shape(
    (text("key", "Name of the setting."), text("value", "Its value. Secrets are hidden.")),
    tables_only=True,
)
ORIGINS: Final = Shape(
    (
        text("key", "Name of the setting."),
        text("value", "Its value; null if it has none. Secrets are hidden.", nullable=True),
        text(
            "origin", "Where it comes from: flag, environment, profile, current (profile), default."
        ),
        text("from", "Name of the flag, the variable or the profile.", nullable=True),
    ),
    when="with --origin",
)
EDITED: Final = Shape(fields=(_FILE, truth("changed", "Whether the file was changed.")))
DELETED: Final = Shape(fields=(text("deleted", "Name of the profile."),))
