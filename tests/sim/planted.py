"""Known mistakes in recovery, to be planted into the real code: each must be found by its checks.

Each is what a published implementation or text once did wrong. `planted(name)` is a context in
which recovery makes that mistake.
"""

import contextlib
from dataclasses import replace
from unittest import mock

from ledger.client import metadata_format, recover
from ledger.core import recovery as core
from ledger.core.entry_format import read_header
from ledger.ids import EntryId
from ledger.ports.bookies import ReadReply, Status


class Bare(core.Recovery):
    """No mistake: all answers to fences have damaged entries, so all must be read."""

    def on_fenced(self, index, lac, highest=None):
        return super().on_fenced(index, lac)


class UnfencedReads(recover.RecoveryRun):
    """T1: reading forward does not fence; a fence answer of other bookies seems enough."""

    def __init__(self, *args):
        super().__init__(*args)
        self._core.__class__ = Bare
        self._patience_s = 0.0

    def close_by_fences(self, replies):
        return None

    async def _read_fenced(self, bookie, entry):
        if entry < 0:
            return await super()._read_fenced(bookie, entry)
        return await self._bookies.read(bookie, self._ledger, entry)


class NoAnswerIsNoLedger(recover.RecoveryRun):
    """T22: a bookie that cannot be reached counts as one without the ledger."""

    async def _read_fenced(self, bookie, entry):
        reply = await super()._read_fenced(bookie, entry)
        return ReadReply(Status.NO_LEDGER) if reply.status is Status.UNREACHABLE else reply


class RefusalIsNoLedger(recover.RecoveryRun):
    """A bookie that refuses the role of this process counts as one without the ledger."""

    async def _read_fenced(self, bookie, entry):
        reply = await super()._read_fenced(bookie, entry)
        return ReadReply(Status.NO_LEDGER) if reply.status is Status.PERMISSION_DENIED else reply


class AnyLac(recover.RecoveryRun):
    """The LAC in a fence answer counts, whether or not its digest matches."""

    def _on_fence_reply(self, fence, reply):
        if reply.status is not Status.OK:
            return super()._on_fence_reply(fence, reply)
        return self._core.on_fenced(fence.index, read_header(reply.body).lac)


class OneNoIsEnough(Bare):
    """T3: the first bookie that does not have an entry ends recovery."""

    def _read_ahead(self):
        actions = super()._read_ahead()
        for one in self._reading:
            one.absent._needed = 1
        return actions


class ErrorIsNo(Bare):
    """T4: a timeout or an I/O error counts as "no such entry"."""

    def on_read(self, index, entry, answer):
        absent = core.Absent() if isinstance(answer, core.Unknown) else answer
        return super().on_read(index, entry, absent)


class CommittedChange(recover.RecoveryRun):
    """T8: a bookie replaced during recovery is published before the ledger is closed."""

    tree = None

    def _perform(self, action):
        path = metadata_format.ledger_path(self._ledger)
        record = self.tree.get(path)
        stored = metadata_format.decode(record.data, self._ledger)
        mine = self._core._metadata
        if not stored.closed and stored.fragments != mine.fragments:
            changed = replace(stored, fragments=mine.fragments)
            self.tree.set(path, metadata_format.encode(changed), record.version)
        super()._perform(action)


class ReadsFromTheNew(Bare):
    """T9: reading forward asks the ensemble as changed by this recovery."""

    def _read_ahead(self):
        self._read_ensemble = self._ensemble
        return super()._read_ahead()


class NoFloor(core.Recovery):
    """T13: the start is the highest LAC heard, even below the last fragment."""

    def _begin_reading(self):
        metadata = self._metadata
        first = metadata.fragments[-1]._replace(first=EntryId(0))
        with mock.patch.object(self, "_metadata", replace(metadata, fragments=(first,))):
            return super()._begin_reading()


class OwnProgress(core.Recovery):
    """A copy's LAC tells how far this recovery came, on bookies that no metadata name yet."""

    def _recovery_add(self, index, entry, found):
        action = super()._recovery_add(index, entry, found)
        return replace(action, lac=min(self._adding.lac, entry - 1))


class FencesOne(core.Recovery):
    """One fenced bookie is enough to begin."""

    def start(self):
        self._fenced._needed = 1
        self._fenced._sets = (tuple(range(len(self._read_ensemble))),)
        return super().start()


class OneHolderIsEnough(core.Recovery):
    """An entry that any bookie has shown is not added again."""

    def _safe_at(self, reading, indexes):
        return set(indexes) if reading.holders else set()


class SkipsOneCopy(core.Recovery):
    """An entry that all bookies but one have shown is not added again."""

    def _safe_at(self, reading, indexes):
        return set(indexes) if len(reading.holders) >= len(indexes) - 1 else set()


class NoWriteBack(core.Recovery):
    """What was found is taken for safe where it is."""

    def _accept(self, reading, found):
        entry = self._next
        super()._accept(reading, found)
        for index in self._adding.write_set(entry):
            self._adding.on_added(index, entry)
        return []


@contextlib.contextmanager
def planted(name, tree=None):
    mistake = PLANTS[name]
    target = "RecoveryRun" if issubclass(mistake, recover.RecoveryRun) else "Recovery"
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(recover, target, mistake))
        if mistake is CommittedChange:
            stack.enter_context(mock.patch.object(CommittedChange, "tree", tree))
        yield


PLANTS = {
    "recovery reads do not fence": UnfencedReads,
    "one no ends recovery": OneNoIsEnough,
    "an error counts as no": ErrorIsNo,
    "bookies changed during recovery are published early": CommittedChange,
    "recovery reads from the changed bookies": ReadsFromTheNew,
    "a copy tells of unpublished progress": OwnProgress,
    "recovery starts below the last fragment": NoFloor,
    "what one bookie has shown is not added again": OneHolderIsEnough,
}
