"""Goal: one can read what recovery does when it matters.

Method: stories, played on the pure state machine; each `recovery_*.txt` is one. Commands:

    ledger E Qw Qa [window N] [spares b8,b9]   the ledger; fragments follow
    fragment FIRST b1,b2,b3
    start · fenced B lac N · no fence B · found B ENTRY · absent B ENTRY · unknown B ENTRY
    added B ENTRY · refused B ENTRY
"""

import asyncio

import pytest

from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.core.recovery import Abort, Absent, Close, Fence, Found, ReadEntry, Recovery, Unknown
from tests.stories.runner import names, play


class Teller:
    """Feeds one line after the other to a recovery and words its answers."""

    def __init__(self):
        self.shape = None
        self.options = {"window": 1}
        self.fragments = []
        self.recovery = None
        self.names = ()

    async def execute(self, command):
        words = command.split()
        if words[0] == "ledger":
            self.shape = [int(word) for word in words[1:4]]
            options = dict(zip(words[4::2], words[5::2], strict=True))
            self.options["window"] = int(options.get("window", 1))
            self.options["spares"] = options["spares"].split(",") if "spares" in options else ()
            return []
        if words[0] == "fragment":
            self.fragments.append(Fragment(int(words[1]), tuple(words[2].split(","))))
            return []
        if words == ["start"]:
            return self.worded(self.begin())
        return self.worded(self.news(words))

    def begin(self):
        e, qw, qa = self.shape
        metadata = LedgerMetadata(
            ledger=1,
            ensemble_size=e,
            write_quorum=qw,
            ack_quorum=qa,
            fragments=tuple(self.fragments),
        )
        self.names = metadata.last_fragment.ensemble
        self.recovery = Recovery(metadata.in_recovery(), **self.options)
        return self.recovery.start()

    def news(self, words):
        recovery, what = self.recovery, words[0]
        if what == "fenced":
            return recovery.on_fenced(self.names.index(words[1]), int(words[3]))
        if what == "no":
            return recovery.on_fence_failed(self.names.index(words[2]))
        bookie, entry = words[1], int(words[2])
        if what in ("added", "refused"):
            ensemble = recovery._ensemble
            if bookie not in ensemble:
                return []
            act = recovery.on_added if what == "added" else recovery.on_add_failed
            return act(ensemble.index(bookie), bookie, entry)
        answer = {"found": Found(10 * entry + 10, b"x" * 10), "absent": Absent()}
        index = self.names.index(bookie)
        return recovery.on_read(index, entry, answer.get(what, Unknown()))

    def worded(self, actions):
        return [self.word(action) for action in actions] or ["nothing yet"]

    def word(self, action):
        if isinstance(action, Fence):
            return f"fence {action.bookie}"
        if isinstance(action, ReadEntry):
            return f"read {action.entry} from {action.bookie}, fencing"
        if isinstance(action, Close):
            fragments = "; ".join(f"{f.first} {','.join(f.ensemble)}" for f in self.after(action))
            return f"CLOSE at {action.last_entry}, length {action.length}, fragments {fragments}"
        if isinstance(action, Abort):
            return f"GIVE UP: {type(action.error).__name__}: {action.error}"
        return f"add {action.entry} to {action.bookie} again, lac {action.lac}"

    def after(self, close):
        return close.metadata.fragments


@pytest.mark.parametrize("name", names("recovery_"))
def test_recovery_does_what_the_story_says(name):
    asyncio.run(play(name, Teller().execute))
