"""What must hold of every ledger, one class for each invariant, told of each event as it happens.

    ack       a writer told its caller that an entry is confirmed
    durable   a bookie said that it has an entry
    change    ledger metadata changed in the store
    deliver   a reader handed out an entry, or a last add confirmed
    reply     a bookie answered, whether or not anybody heard it
    final     all is healed, recovered and, in some worlds, repaired

`Ledgers` is what all of them know: it is built from the same events by `checks`, which tells
everybody.
"""

from collections import defaultdict

from ledger.core.entry_format import HEADER_BYTES, read_header
from ledger.core.ledger_metadata import LedgerState
from ledger.core.quorum import coverage_size, write_sets
from ledger.errors import Fenced, LedgerClosed
from ledger.ports.bookies import Status

DIGEST_BYTES = 4  # CRC32C
ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)


class Ledgers:
    """The truth, as the events tell it."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.acked = {}  # by ledger: all entries up to here
        self.metadata = {}  # by ledger, as stored; kept when it is deleted
        self.deleted = set()
        self.ever = defaultdict(set)  # by (ledger, entry): bookies that said "durable"
        self.said = defaultdict(set)  # the same, but for those that lost it since
        self.payloads = {}  # by (ledger, entry): the first one that was durable anywhere
        self.lost = set()  # bookies that lost their data, or a part of it
        self.had = defaultdict(set)  # what those said before, and have not got back
        self.shown = {}  # by (ledger, entry, bookie): payloads as they are in the end

    def acked_up_to(self, ledger):
        return self.acked.get(ledger, -1)

    def confirmed_up_to(self, ledger):
        """The highest entry that a reader may see."""
        metadata = self.metadata.get(ledger)
        if metadata is not None and metadata.closed:
            return metadata.last_entry
        return self.acked_up_to(ledger)

    def holders(self, metadata, entry):
        """Bookies of the entry's write set that said that they have it, and have not lost it."""
        said = self.said[metadata.ledger, entry]
        return [one for one in metadata.bookies_of(entry) if one in said]


class Check:
    """One invariant. Every method is called at its event; most do nothing."""

    def __init__(self, ledgers, report):
        self.ledgers = ledgers
        self._report = report

    def report(self, text):
        self._report(f"{type(self).__name__.partition('_')[0]}: {text}")

    def on_ack(self, host, ledger, entry):
        pass

    def on_durable(self, bookie, ledger, entry, body, recovery):
        pass

    def on_change(self, ledger, old, new):
        pass

    def on_set(self, host, ledger, metadata, begins):
        pass

    def on_writer_failed(self, host, ledger, error):
        pass

    def on_delivered(self, ledger, entry, payload):
        pass

    def on_lac(self, ledger, lac):
        pass

    def on_fence_reply(self, host, bookie, ledger, reply):
        pass

    def on_fence_heard(self, host, bookie, ledger, entry, reply):
        pass

    def on_read_reply(self, bookie, ledger, first, last, reply):
        pass

    def on_highest(self, bookie, ledger, highest):
        """A bookie answered a fence with `highest`, and so denies all entries above."""

    def on_list_reply(self, bookie, ledger, reply):
        pass

    def on_lac_reply(self, bookie, ledger, reply):
        pass

    def on_recovery_read(self, host, bookie, ledger, entry):
        pass

    def on_lost(self, bookie):
        pass

    def on_deleted(self, ledger):
        pass

    def on_collected(self, bookie, ledger):
        pass

    def final(self, metadata, repaired):
        pass


class L1_Quorums(Check):
    def on_change(self, ledger, old, new):
        if not new.ensemble_size >= new.write_quorum >= new.ack_quorum >= 1:
            self.report(f"ledger {ledger} has {new}")


class L2_AckQuorum(Check):
    """An acknowledged entry is durable on Qa of its committed write set, and so is each before."""

    def on_ack(self, host, ledger, entry):
        known = self.ledgers
        if entry != known.acked_up_to(ledger) + 1:
            self.report(f"{entry} acknowledged after {known.acked_up_to(ledger)}")
        metadata = known.metadata[ledger]
        said = known.ever[ledger, entry]
        holders = [one for one in metadata.bookies_of(entry) if one in said]
        if len(holders) < metadata.ack_quorum:
            self.report(f"entry {entry} of {ledger} acknowledged, durable on {holders} only")


class L3_Lac(Check):
    """A LAC is below its entry, never above what is acknowledged, and never falls at a bookie."""

    def __init__(self, *args):
        super().__init__(*args)
        self.highest = {}

    def on_durable(self, bookie, ledger, entry, body, recovery):
        lac = read_header(body).lac
        if lac >= entry:
            self.report(f"entry {entry} says that {lac} is confirmed")
        if lac > self.ledgers.acked_up_to(ledger):
            acked = self.ledgers.acked_up_to(ledger)
            self.report(f"entry {entry} of {ledger} says {lac}, acknowledged is {acked}")

    def on_lac(self, ledger, lac):
        confirmed = self.ledgers.confirmed_up_to(ledger)
        if lac > confirmed:
            self.report(f"a reader of {ledger} knows {lac}, {confirmed} is confirmed")

    def on_delivered(self, ledger, entry, payload):
        self.on_lac(ledger, entry)

    def on_lac_reply(self, bookie, ledger, reply):
        if reply.status is Status.OK and ledger not in self.ledgers.deleted:
            if reply.lac < self.highest.get((bookie, ledger), -1):
                self.report(f"{bookie} says {reply.lac} after {self.highest[bookie, ledger]}")
            self.highest[bookie, ledger] = reply.lac

    def on_lost(self, bookie):
        self.highest = {key: lac for key, lac in self.highest.items() if key[0] != bookie}


class L4_OnePayload(Check):
    """All copies of an entry ever durable have one payload; no bookie was offered another one."""

    def on_durable(self, bookie, ledger, entry, body, recovery):
        payload = body[HEADER_BYTES + DIGEST_BYTES :]
        if self.ledgers.payloads[ledger, entry] != payload:
            self.report(f"{bookie} holds another payload of entry {entry} of {ledger}")

    def on_delivered(self, ledger, entry, payload):
        if self.ledgers.payloads.get((ledger, entry)) != payload:
            self.report(f"entry {entry} of {ledger} reads as {payload}")

    def final(self, metadata, repaired):
        for name, bookie in self.ledgers.cluster.bookies.items():
            if bookie.conflicts:
                self.report(f"{name} was offered {bookie.conflicts} other payloads")


class L5_NoTruncation(Check):
    """Nothing acknowledged lies above the end of a closed ledger, whoever acknowledged it when."""

    def on_ack(self, host, ledger, entry):
        metadata = self.ledgers.metadata[ledger]
        if metadata.closed and entry > metadata.last_entry:
            self.report(f"{entry} of {ledger} acknowledged, closed at {metadata.last_entry}")

    def on_change(self, ledger, old, new):
        acked = self.ledgers.acked_up_to(ledger)
        if new.closed and new.last_entry < acked:
            self.report(f"{ledger} is closed at {new.last_entry}, {acked} was acknowledged")
        if old is not None and old.closed and new.last_entry != old.last_entry:
            self.report(f"the end of {ledger} moved from {old.last_entry} to {new.last_entry}")


class L6_Readable(Check):
    """An acknowledged entry is on some bookie that its fragment names, as long as fewer than Qa
    bookies lost their data.
    """

    def on_ack(self, host, ledger, entry):
        self._check(self.ledgers.metadata[ledger], entry)

    def on_change(self, ledger, old, new):
        if old is not None and old.fragments != new.fragments:
            self._check_all(new)

    def on_lost(self, bookie):
        for ledger, metadata in self.ledgers.metadata.items():
            if ledger not in self.ledgers.deleted:
                self._check_all(metadata)

    def _check_all(self, metadata):
        for entry in range(self.ledgers.acked_up_to(metadata.ledger) + 1):
            self._check(metadata, entry)

    def _check(self, metadata, entry):
        few = len(self.ledgers.lost) < metadata.ack_quorum
        if few and not self.ledgers.holders(metadata, entry):
            self.report(f"acknowledged entry {entry} of {metadata.ledger} is nowhere")


class L7_Replicated(Check):
    """Every entry of a closed ledger is on Qa of its write set; after repair on all of it."""

    def on_change(self, ledger, old, new):
        if new.closed and not (old is not None and old.closed):
            for entry in range(new.last_entry + 1):
                said = self.ledgers.ever[ledger, entry]
                count = sum(one in said for one in new.bookies_of(entry))
                if count < new.ack_quorum:
                    self.report(f"{ledger} is closed, entry {entry} is on {count} bookies")

    def final(self, metadata, repaired):
        for entry in range(metadata.last_entry + 1):
            holders = self.ledgers.holders(metadata, entry)
            needed = metadata.write_quorum if repaired else metadata.ack_quorum
            if not repaired:
                needed -= len(self.ledgers.lost)
            shown = [one for one in holders if self._shows(one, metadata.ledger, entry)]
            if len(shown) < max(1, needed):
                self.report(f"entry {entry} of {metadata.ledger} is on {shown}, said {holders}")

    def _shows(self, name, ledger, entry):
        """The bookie still has what it said it has, unharmed."""
        shown = self.ledgers.shown.get((ledger, entry, name))
        return shown is not None and shown == self.ledgers.payloads[ledger, entry]


class L8_States(Check):
    """OPEN, IN_RECOVERY, CLOSED only forward, whoever writes."""

    def on_change(self, ledger, old, new):
        if old is not None and new.state < old.state:
            self.report(f"{ledger} went from {old.state.name} to {new.state.name}")


class L9_Fragments(Check):
    """A writer changes or appends the last fragment only, from its first unconfirmed entry on."""

    def on_change(self, ledger, old, new):
        if old is None or old.fragments == new.fragments:
            return
        firsts = [one.first for one in old.fragments]
        if [one.first for one in new.fragments][: len(firsts)] != firsts:
            self.report(f"{old.fragments} became {new.fragments}")
        acked, last = self.ledgers.acked_up_to(ledger), new.last_fragment
        if new.state is LedgerState.OPEN and last != old.last_fragment and last.first != acked + 1:
            self.report(f"{ledger} has a fragment from {last.first}, acknowledged is {acked}")


class L10_Fenced(Check):
    """A bookie that answered a fence never again says "durable" to a writer (and, L16, what it
    accepted before the fence it settled before the answer).
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.fenced = set()

    def on_fence_reply(self, host, bookie, ledger, reply):
        if reply.status is Status.OK or reply.status in ABSENT:
            self.fenced.add((bookie, ledger))

    def on_durable(self, bookie, ledger, entry, body, recovery):
        if not recovery and (bookie, ledger) in self.fenced:
            self.report(f"{bookie} took entry {entry} of {ledger} after it was fenced")


class L11_Coverage(Check):
    """Reading forward starts only when every write set is covered by fences that were heard."""

    def __init__(self, *args):
        super().__init__(*args)
        self.heard = defaultdict(set)

    def on_fence_heard(self, host, bookie, ledger, entry, reply):
        if reply.status is Status.OK or reply.status in ABSENT:
            self.heard[host, ledger].add(bookie)

    def on_recovery_read(self, host, bookie, ledger, entry):
        if entry < 0:
            return
        metadata = self.ledgers.metadata[ledger]
        ensemble = metadata.last_fragment.ensemble
        heard = self.heard[host, ledger]
        needed = coverage_size(metadata.write_quorum, metadata.ack_quorum)
        for one in write_sets(metadata.ensemble_size, metadata.write_quorum):
            if not metadata.closed and sum(ensemble[index] in heard for index in one) < needed:
                self.report(f"{host} reads {entry} of {ledger} with {sorted(heard)} fenced")


class L12_RecoveryReads(Check):
    """Recovery reads go to the ensemble as it is stored, never to one that is not yet."""

    def __init__(self, *args):
        super().__init__(*args)
        self.named = defaultdict(set)

    def on_change(self, ledger, old, new):
        self.named[ledger].update(*(one.ensemble for one in new.fragments))

    def on_recovery_read(self, host, bookie, ledger, entry):
        if bookie not in self.named[ledger]:
            self.report(f"{host} reads entry {entry} of {ledger} from {bookie}")


class L13_OneClose(Check):
    """A recovery publishes nothing before its one compare-and-set that closes."""

    def on_change(self, ledger, old, new):
        if old is None or old.state is not LedgerState.IN_RECOVERY or new.closed:
            return
        if old.last_fragment != new.last_fragment:
            self.report(f"{ledger}: {new.last_fragment} while it is being recovered")


class L14_NoFalseNo(Check):
    """A bookie never denies an entry that it said it has, while the ledger exists."""

    def __init__(self, *args):
        super().__init__(*args)
        # What a bookie had said before anybody fenced the ledger there: a recovery adds more.
        self.before = {}

    def on_recovery_read(self, host, bookie, ledger, entry):
        if (bookie, ledger) not in self.before:
            said = self.ledgers.said
            held = {at for one, at in list(said) if one == ledger and bookie in said[one, at]}
            self.before[bookie, ledger] = held

    def on_highest(self, bookie, ledger, highest):
        if bookie in self.ledgers.lost:
            return
        for entry in sorted(self.before.get((bookie, ledger), ())):
            if entry > highest and bookie in self.ledgers.said[ledger, entry]:
                self.report(f"{bookie} denies entry {entry} of {ledger}: it shows {highest}")

    def on_read_reply(self, bookie, ledger, first, last, reply):
        if reply.status not in ABSENT or bookie in self.ledgers.lost or first < 0:
            return
        if ledger not in self.ledgers.deleted and bookie in self.ledgers.said[ledger, first]:
            self.report(f"{bookie} denies entry {first} of {ledger}: {reply.status.name}")

    def on_list_reply(self, bookie, ledger, reply):
        known = self.ledgers
        if reply.status is not Status.OK or bookie in known.lost or ledger in known.deleted:
            return
        for one, entry in list(known.said):
            listed = any(first <= entry <= last for first, last in reply.runs)
            if one == ledger and not listed and bookie in known.said[one, entry]:
                self.report(f"{bookie} does not list entry {entry} of {ledger}")


class L15_Limbo(Check):
    """A bookie that may have lost entries says no of no ledger before its share is whole again."""

    def on_read_reply(self, bookie, ledger, first, last, reply):
        if reply.status not in ABSENT or (ledger, first) not in self.ledgers.had.get(bookie, ()):
            return
        metadata = self.ledgers.metadata[ledger]
        above = metadata.closed and first > metadata.last_entry
        if above or ledger in self.ledgers.deleted or bookie not in metadata.bookies_of(first):
            return
        self.report(f"{bookie} lost entry {first} of {ledger} and denies it")

    def on_highest(self, bookie, ledger, highest):
        metadata = self.ledgers.metadata[ledger]
        end = metadata.last_entry if metadata.closed else None
        for one, entry in sorted(self.ledgers.had.get(bookie, ())):
            known = one == ledger and (end is None or entry <= end)
            if known and entry > highest and bookie in metadata.bookies_of(entry):
                self.report(f"{bookie} lost entry {entry} of {ledger}, and shows {highest}")


class L17_HeldAcks(Check):
    """While a change of the ensemble is on its way, nothing that it moves is acknowledged."""

    def __init__(self, *args):
        super().__init__(*args)
        self.changing = {}

    def on_set(self, host, ledger, metadata, begins):
        self.changing.pop((host, ledger), None)
        if begins and metadata.state is LedgerState.OPEN:
            self.changing[host, ledger] = metadata.last_fragment.first

    def on_ack(self, host, ledger, entry):
        if entry >= self.changing.get((host, ledger), entry + 1):
            self.report(f"{entry} of {ledger} acknowledged while its bookies are being changed")


class L18_Deleted(Check):
    """Only closed ledgers are deleted, so that nothing is acknowledged that was not in it when it
    was; only deleted ones are collected.
    """

    def on_deleted(self, ledger):
        metadata = self.ledgers.metadata[ledger]
        if not metadata.closed:
            self.report(f"{ledger} was deleted while it was {metadata.state.name}")

    def on_collected(self, bookie, ledger):
        if ledger not in self.ledgers.deleted:
            self.report(f"{bookie} collected {ledger}, which exists")


class L19_WholeShare(Check):
    """Repair swaps a bookie in when that one has its whole share, and leaves writers alone."""

    def on_change(self, ledger, old, new):
        if old is None:
            return
        if old.write_quorum != new.write_quorum:
            self._check_added(old, new, 0, new.last_entry)
            return
        last = new.last_entry if new.closed else new.last_fragment.first - 1
        for number, (before, after) in enumerate(zip(old.fragments, new.fragments, strict=False)):
            mended = number < len(old.fragments) - 1 or old.closed
            if before.ensemble == after.ensemble or not mended:
                continue
            end = new.fragments[number + 1].first - 1 if number + 1 < len(new.fragments) else last
            self._check_added(old, new, after.first, end)

    def _check_added(self, old, new, first, last):
        """Whoever is named for these entries only now has them."""
        for entry in range(first, last + 1):
            added = set(new.bookies_of(entry)) - set(old.bookies_of(entry))
            missing = added - self.ledgers.said[new.ledger, entry]
            if missing:
                self.report(f"{missing} named for entry {entry} of {new.ledger} without it")


class M1_OwnReply(Check):
    """A writer gives up as overtaken only when it was."""

    def on_writer_failed(self, host, ledger, error):
        metadata = self.ledgers.metadata[ledger]
        overtaken = isinstance(error, (Fenced, LedgerClosed))
        if overtaken and metadata.state is LedgerState.OPEN and not self.ledgers.lost:
            self.report(f"{host} gives up {ledger}, which is open: {error!r}")


ALL = (
    L1_Quorums,
    L2_AckQuorum,
    L3_Lac,
    L4_OnePayload,
    L5_NoTruncation,
    L6_Readable,
    L7_Replicated,
    L8_States,
    L9_Fragments,
    L10_Fenced,
    L11_Coverage,
    L12_RecoveryReads,
    L13_OneClose,
    L14_NoFalseNo,
    L15_Limbo,
    L17_HeldAcks,
    L18_Deleted,
    L19_WholeShare,
    M1_OwnReply,
)
