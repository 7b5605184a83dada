"""The bookies of this process as its ledger port shows them: read-only, without a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ledger.bookie.bookie import Bookie
from ledger.bookie.in_process import LocalBookies
from ledger.bookie.read_only_view import ReadOnlyView
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo


class ShownBookies(LocalBookies):
    """The `Bookies` of a ledger port, registered as `infos` say: with their ports, as read-only."""

    def __init__(self, views: Sequence[ReadOnlyView], infos: Mapping[BookieId, BookieInfo]) -> None:
        # What a view lacks of a bookie is asked for only by the two methods below.
        super().__init__(cast("Sequence[Bookie]", views))
        self._infos = infos

    def available(self) -> tuple[BookieId, ...]:
        return ()

    def registered(self) -> Mapping[BookieId, BookieInfo]:
        return self._infos
