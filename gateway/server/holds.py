"""Reasons why a connection reads nothing: bits of one number, 0 while it reads."""

from __future__ import annotations

from typing import Final

IN_FLIGHT: Final = 1
"""Too many requests are unanswered, or too many reply bytes wait."""
MEMORY: Final = 2
"""The memory for requests of this process is used up."""
WRITING: Final = 4
"""The peer does not read its replies."""
TURN: Final = 8
"""Other connections have their turn first."""
CLOSING: Final = 16
"""Never released: the connection closes once every request is answered."""
LINE: Final = 32
"""Many requests wait for earlier ones of the connection."""
LOGIN: Final = 64
"""A password is being checked."""
THROTTLED: Final = 128
"""The client has used up a quota."""
