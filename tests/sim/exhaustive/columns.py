"""One bookie and every message on its way to it, as a value.

A request is waiting (its sender would still make something of the reply), late (handled, and the
reply is on its way) or stray (nobody waits; it is handled at any time or never). What can change
nothing any more is dropped: that keeps the search small and loses no behaviour.
"""

from typing import NamedTuple

from ledger.core.fencing import AddDecision, FenceState
from tests.sim.exhaustive.hosts import Request

WAITING, LATE, STRAY = 0, 1, 2
NOBODY = -1
KEY = b"key"


class Message(NamedTuple):
    host: int
    request: Request
    state: int


class Column(NamedTuple):
    """`held` has a bit for each entry; `lac` is the highest that an entry told."""

    fenced: bool = False
    held: int = 0
    lac: int = -1
    limbo: bool = False
    messages: tuple = ()

    @property
    def kept(self):
        """Without the messages."""
        return (self.fenced, self.held, self.limbo)

    def with_message(self, message):
        return self._replace(messages=(*self.messages, message))

    def without(self, message):
        return self._replace(messages=tuple(one for one in self.messages if one != message))

    def tidy(self, gives_up):
        """The same column without messages that can change nothing."""
        messages = {one for one in self.messages if self._matters(one, gives_up)}
        return self._replace(messages=tuple(sorted(messages)))

    def _matters(self, message, gives_up):
        kind, entry, lac = message.request
        if message.state == LATE:
            return True
        if message.state == WAITING and (gives_up or kind != "A"):
            return True
        if kind == "A" and self.fenced:
            return False  # a refusal only stops the writer
        if kind in "FRU":
            return False  # a fence that nobody hears of only stops the writer
        return not self.held >> entry & 1 or lac > self.lac


def deliverable(column):
    """Requests that may be handled next: adds of one host in the order they were sent."""
    ahead = set()
    for message in column.messages:
        if message.state == LATE:
            continue
        if message.request.kind in "AG":
            if message.host in ahead:
                continue
            ahead.add(message.host)
        yield message


def handle(column, message, faults):
    """The column after the bookie handled it, without the message, and the reply's event.

    No event: what the sender would hear could only stop it.
    """
    column = column.without(message)
    request = message.request
    if request.kind in "AG":
        return _add(column, request)
    if request.kind != "U":
        column = column._replace(fenced=True)
    has_it = column.held >> request.entry & 1 if request.entry >= 0 else column.held
    unsure = column.limbo and (request.kind == "F" or not has_it)  # a higher one may be lost
    if unsure and "limbo denies" not in faults:
        unknown = ("read", request.entry, "unknown") if request.kind != "F" else None
        return column, unknown if "unknown" in faults else None
    if request.kind == "F":
        return column, ("fence", column.lac, column.held.bit_length() - 1)
    return column, ("read", request.entry, "found" if has_it else "absent")


def _add(column, request):
    guard = FenceState(KEY, fenced=column.fenced)
    if guard.check_add(KEY, request.kind == "G") is not AddDecision.ACCEPT:
        return column, None
    assert request.kind == "G" or not column.fenced, "L10: a fenced bookie took an add"
    held = column.held | 1 << request.entry
    lac = max(column.lac, request.lac)
    return column._replace(held=held, lac=lac), ("added", request.entry)
