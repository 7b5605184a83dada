"""What the clients of a simulated cluster did and were told, as a history for the checker."""

import asyncio

from tests.histories.checker import bad, check
from tests.histories.history import FINAL, FOREVER_S, INFO, OK, Op, key_of

KEY = key_of("t", 0)
PLAIN, IDEMPOTENT = "simulated plain", "simulated idempotent"


def now():
    return asyncio.get_running_loop().time()


class Recorder:
    """Calls of all clients of one world. Batches are the values; truncation is not understood."""

    def __init__(self):
        self.ops = []
        self.truncated = False
        self._began_s = {}  # of sends, by batch
        self._at = {}  # of each reader: where it is, and how often it began elsewhere

    def sends(self, sent):
        self._began_s.setdefault(sent.number, now())

    def acked(self, sent, offset):
        self._send(sent, OK, now(), offset)

    def _send(self, sent, result, end_s, offset):
        client = PLAIN if sent.producer < 0 else IDEMPOTENT
        began_s = self._began_s.pop(sent.number, None)
        if began_s is not None:
            value = [(KEY, sent.number, offset)]
            process = f"batch {sent.number}"  # several are under way: their order is told elsewhere
            self.ops.append(Op(process, client, "send", result, began_s, end_s, value))

    def polls(self, offset, found, *, began_s, final):
        """`found` are (offset, batch, end) in order."""
        task = FINAL if final else asyncio.current_task().get_name()
        at, reader = self._at.get(task, (-1, 0))
        if at != offset:  # it begins elsewhere: another reader, as far as order goes
            reader += 1
        process = f"{task} {reader}"
        if at != offset:
            self.ops.append(Op(process, "simulated", "assign", OK, began_s, began_s, [KEY]))
        value = {KEY: [(at, sent.number) for at, sent, _ in found]}
        self.ops.append(Op(process, "simulated", "poll", OK, began_s, now(), value))
        self._at[task] = found[-1][2], reader

    def looks(self, partition):
        value = {
            KEY: (partition.high_watermark, partition.log_start_offset, partition.leader_epoch)
        }
        self.ops.append(Op("looker", "simulated", "look", OK, now(), now(), value))

    def group(self, kind, name, offset, *, began_s, result=OK):
        end_s = FOREVER_S if result is INFO else now()
        value = (name, {KEY: offset})
        self.ops.append(Op(name, "simulated", kind, result, began_s, end_s, value))

    def judged(self, sent):
        """What is wrong. `sent` are all batches that were ever sent."""
        for one in sent:
            self._send(one, INFO, FOREVER_S, None)
        return [] if self.truncated else bad(check(self.ops, dense=False))
