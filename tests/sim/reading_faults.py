"""What goes wrong in a reading world besides crashes and cuts: copies vanish, rot and come back."""

from tests.sim.swarm_faults import Faults

KINDS = (
    "crash",
    "rolling_restart",
    "cut",
    "cut_requests",
    "cut_replies",
    "slow_links",
    "slow_disk",
    "loss",
    "pause",
    "read_only",
    "overload",
    "metadata_cut",
    "expire",
)
LOSSES = ("forget", "forget", "rot_some", "find_again", "come_back_in_limbo", "come_back_old")


class ReadingFaults(Faults):
    """One bookie may lose its disk. Besides, chosen entries vanish from all bookies."""

    def __init__(self, world):
        super().__init__(world)
        self.kinds += world.losses_of_copies
        self.forgotten = []  # (ledger, entry) that no bookie had, for a time at least

    def _bookies_with(self, ledger):
        return [one for one in self.bookies() if ledger in one.ledgers]

    def _safe_last(self, ledger):
        """The last entry that may vanish: a recovery would not take it for one that never was."""
        metadata = self.world.oracle.ledgers.metadata[ledger]
        if metadata.closed:
            return metadata.last_entry
        known = [one.ledgers[ledger].highest_lac for one in self._bookies_with(ledger)]
        return min(known, default=-1) if len(known) >= metadata.ensemble_size else -1

    def _some_entries(self):
        """A ledger, and a short run of its entries."""
        oracle = self.world.oracle
        ledgers = sorted({ledger for ledger, _ in oracle.bodies} - oracle.ledgers.deleted)
        ledgers = [ledger for ledger in ledgers if self._safe_last(ledger) >= 0]
        if not ledgers:
            return None, ()
        ledger = self.draw.choice(ledgers)
        last = self._safe_last(ledger)
        first = self.draw.randint(0, last)
        return ledger, range(first, min(last, first + self.draw.choice([0, 0, 1, 3])) + 1)

    def forget(self):
        """Entries are gone from all bookies but, perhaps, one; none of them knows."""
        ledger, entries = self._some_entries()
        spared = self.a_bookie() if self.draw.random() < 0.3 else None
        for name, bookie in self.world.cluster.bookies.items():
            for entry in entries:
                if name != spared:
                    bookie.durable_entries(ledger).pop(entry, None)
        for entry in entries:
            self.world.oracle.on_copies_lost()
            if not self.world.oracle.copies(ledger, entry):
                self.world.oracle.seen["all copies of an entry vanished"] += 1
                self.forgotten.append((ledger, entry))

    def rot_some(self):
        """Copies on one bookie cannot be read any more."""
        ledger, entries = self._some_entries()
        bookie = self.world.cluster.bookies[self.a_bookie()]
        for entry in entries:
            if entry in bookie.durable_entries(ledger):
                bookie.rotten[ledger, entry] = self.draw.choice(["unreadable", "payload"])
                self.world.oracle.on_copies_lost()

    def find_again(self):
        """A copy of an entry that was lost turns up again where it once was."""
        oracle = self.world.oracle
        if not self.forgotten:
            return
        ledger, entry = self.draw.choice(self.forgotten)
        if ledger in oracle.ledgers.deleted:
            return
        names = oracle.ledgers.metadata[ledger].bookies_of(entry)
        bookie = self.world.cluster.bookies.get(self.draw.choice(names))
        stored = bookie and bookie.ledgers.get(ledger)
        if stored and entry not in stored.entries:
            stored.entries[entry] = oracle.bodies[ledger, entry]
            oracle.on_found_again(ledger, entry)
            accepted = oracle.accepted_at(oracle.number_of.get(ledger), entry)
            oracle.seen["a copy was found again" + (" after acceptance" if accepted else "")] += 1
