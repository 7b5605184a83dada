"""One change of a subscriber in a log segment: its records, and its effect once durable."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from subscriptions.committed_offset import (
    CommittedOffset,
    TopicIdPartition,
    encode_advance,
    encode_advances,
)
from subscriptions.segments.log_node import FORMAT_KEYED, FORMAT_PENDING
from subscriptions.segments.segment_records import (
    SubscriptionState,
    encode_end,
    encode_keyed,
    encode_note,
    encode_pending,
    encode_removal,
)


class LogChange:
    """The change of one call: offsets and a note, or the deletion of the subscriber."""

    __slots__ = (
        "bodies",
        "commits",
        "deletes",
        "durable",
        "epoch",
        "existed",
        "form",
        "keyed",
        "keys",
        "note",
        "producer_id",
        "size_bytes",
        "values",
    )

    def __init__(self, durable: Future[None]) -> None:
        self.durable = durable
        self.keys: Collection[TopicIdPartition] = ()
        self.values: Sequence[bytes | None] = ()  # one for each key; None removes the offset
        self.bodies: list[bytes] = []  # the records to append
        self.note: bytes | None = None  # None leaves the note as it is
        self.keyed: Mapping[str, bytes | None] = {}  # notes by key; None removes the note
        self.size_bytes = 0  # of the bodies
        self.form = 0  # the format that the node must have before the records are written
        self.deletes = False  # deletes the subscriber; then all the above is empty
        self.existed = False  # of a deletion: the subscriber existed
        # The producer of a transaction, -1 of a plain change. Its offsets are pending, or they are
        # committed or dropped if `commits` is not None.
        self.producer_id = self.epoch = -1
        self.commits: bool | None = None

    def apply(self, state: SubscriptionState) -> None:
        """Apply the change, which is durable, to the state."""
        if self.commits is not None:
            state.end(self.producer_id, commits=self.commits)
        elif self.producer_id >= 0:
            for key, body in zip(self.keys, self.values, strict=True):
                assert body is not None
                state.pending.put(self.producer_id, self.epoch, key, body)
        else:
            state.update(self.keys, self.values)
        if self.note is not None:
            state.note = self.note
        for key, note in self.keyed.items():
            state.put_keyed(key, note)

    def put_keyed(self, keyed: Mapping[str, bytes | None], note: bytes | None) -> None:
        """Make this the change of notes by key, and of the note unless it is None."""
        self.form, self.keyed, self.note = FORMAT_KEYED, keyed, note
        self.bodies = [encode_keyed(*each) for each in keyed.items()]
        if note is not None:
            self.bodies.append(encode_note(note))
        self.size_bytes = sum(map(len, self.bodies))

    def put_pending(
        self, producer_id: int, epoch: int, offsets: Mapping[TopicIdPartition, CommittedOffset]
    ) -> None:
        """Make this the change of offsets of an open transaction."""
        self.form, self.keys, self.producer_id, self.epoch = (
            FORMAT_PENDING,
            offsets,
            producer_id,
            epoch,
        )
        self.values = encode_advances(offsets.items())
        self.bodies = [encode_pending(body, producer_id, epoch) for body in self.values]
        self.size_bytes = sum(map(len, self.bodies))

    def end_pending(self, producer_id: int, epoch: int, *, commits: bool) -> None:
        """Make this the change that ends a transaction."""
        self.form, self.producer_id, self.epoch = FORMAT_PENDING, producer_id, epoch
        self.commits = commits
        self.bodies = [encode_end(producer_id, epoch, commits=commits)]
        self.size_bytes = len(self.bodies[0])

    def put_offsets(
        self,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None,
    ) -> None:
        """Make this the change of committed offsets, and of the note unless it is None."""
        self.keys = offsets
        if None in offsets.values():
            self.values = [
                None if committed is None else encode_advance(key, committed)
                for key, committed in offsets.items()
            ]
            pairs = zip(offsets, self.values, strict=True)
            self.bodies = [encode_removal(key) if body is None else body for key, body in pairs]
        else:
            known = cast("Mapping[TopicIdPartition, CommittedOffset]", offsets)
            self.values = self.bodies = encode_advances(known.items())
        if note is not None:
            self.note = note
            self.bodies = [*self.bodies, encode_note(note)]
        self.size_bytes = sum(map(len, self.bodies))
