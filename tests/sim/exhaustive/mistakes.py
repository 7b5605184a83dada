"""Known mistakes for the exhaustive search, each a world that must be found wrong."""

from typing import NamedTuple

from ledger.core.add_pipeline import AddPipeline
from tests.sim import planted
from tests.sim.exhaustive.hosts import Recoverer, Writer
from tests.sim.exhaustive.world import Bounds, World


class _UnfencedReads(Recoverer):
    read_kind = "U"
    hears_highest = False


class _OneHolderIsEnough(Recoverer):
    recovery_type = planted.OneHolderIsEnough


class _SkipsOneCopy(Recoverer):
    recovery_type = planted.SkipsOneCopy


class _OneNoIsEnough(Recoverer):
    recovery_type = planted.OneNoIsEnough
    hears_highest = False


class _ErrorIsNo(Recoverer):
    recovery_type = planted.ErrorIsNo
    hears_highest = False


class _OwnProgress(Recoverer):
    recovery_type = planted.OwnProgress


class _PublishesEarly(Recoverer):
    """What it replaced is stored at once."""

    def step(self, event):
        effects = list(super().step(event))
        if self.active and self.core._metadata.fragments != self.began_with.fragments:
            self.began_with = self.core._metadata
            effects.append(("store", self.began_with))
        return effects


class _NeverForgets(AddPipeline):
    def forget(self, index):
        """The mistake: what a replaced bookie said still counts."""


class _CountsReplaced(Writer):
    pipeline_type = _NeverForgets


class _NeverHolds(AddPipeline):
    def hold(self):
        """The mistake: entries are confirmed while their bookies are being changed."""


class _ConfirmsMeanwhile(Writer):
    pipeline_type = _NeverHolds


class Mistake(NamedTuple):
    bounds: Bounds
    writer: type = Writer
    recoverer: type = Recoverer
    faults: frozenset = frozenset()

    def world(self):
        return World(self.bounds, self.writer, self.recoverer, self.faults)


_ONE = Bounds(entries=1, recoverers=1)
_SPARE = Bounds(recoverers=0, spares=1, timeouts=1)

MISTAKES = {
    "T1 recovery reads do not fence": Mistake(_ONE, recoverer=_UnfencedReads),
    "T2 a fence is forgotten by a restart": Mistake(
        Bounds(entries=1, recoverers=1, wipes=1, timeouts=1),
        faults=frozenset({"fences are forgotten"}),
    ),
    "T3 one no ends recovery": Mistake(_ONE, recoverer=_OneNoIsEnough),
    "T4 an error counts as no": Mistake(
        Bounds(entries=1, recoverers=1, timeouts=1),
        recoverer=_ErrorIsNo,
        faults=frozenset({"unknown"}),
    ),
    "T5 what may be lost is denied": Mistake(
        Bounds(entries=1, recoverers=1, wipes=1), faults=frozenset({"limbo denies"})
    ),
    "T8 bookies changed during recovery are published early": Mistake(
        Bounds(entries=1, recoverers=1, spares=1, timeouts=1), recoverer=_PublishesEarly
    ),
    "T10 what a replaced bookie said still counts": Mistake(_SPARE, writer=_CountsReplaced),
    "T12 entries are acknowledged while bookies are being changed": Mistake(
        _SPARE, writer=_ConfirmsMeanwhile
    ),
    "what one bookie has shown is not added again": Mistake(_ONE, recoverer=_OneHolderIsEnough),
    "an entry that one bookie lacks is not added again": Mistake(
        Bounds(entries=1, recoverers=1, ack_quorum=3), recoverer=_SkipsOneCopy
    ),
    "a copy tells of unpublished progress": Mistake(
        Bounds(spares=1, timeouts=1), recoverer=_OwnProgress
    ),
}
