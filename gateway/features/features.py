"""The features of the cluster as one gateway sees them, and the changes of their levels.

All gateways follow one node. Each change is one transaction that names the version of the node that
was read, so of two gateways that change levels at once, the second checks its change again. A level
of `gateway.version` changes together with the cluster's form, which older releases read first.

Data of transactions are written only after `begin_new_forms` has recorded that they may exist.
That record and a downgrade exclude each other. So a gateway whose reading of the levels is old
cannot write a form that the cluster has given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple
from uuid import uuid4

from gateway.core.feature_levels import (
    GATEWAY_VERSION,
    GROUP_VERSION,
    Cluster,
    FeatureUpdate,
    Finalized,
    Form,
    Supported,
    before_features,
    beginning,
    changed,
)
from gateway.core.shown_text import shown
from gateway.features.cluster_form import CLUSTER_ID, ClusterForm, decode_form
from gateway.features.stored_levels import (
    FEATURES,
    LEVELS,
    NAME,
    StoredLevels,
    decode_levels,
    encode_levels,
)
from gateway.log import logger
from gateway.topics.catalog_watch import NodeWatch
from ledger.errors import BadVersion, CorruptFormat, LedgerError, NodeExists, NoNode
from ledger.ports.metadata import Check, Create, MetadataStore, Node, Op, Set
from ledger.tasks import start_once

_UNKNOWN = Finalized(-1, {}, 0)


class _Reading(NamedTuple):
    """The node as it was read or written."""

    stored: StoredLevels
    version: int

    @property
    def life(self) -> str:
        return self.stored.life


Others = Callable[[], Awaitable[Mapping[int, Supported]]]
"""Reads what the other live gateways support, by node id."""


async def alone() -> Mapping[int, Supported]:
    """Return nothing: an embedded gateway has no others."""
    return {}


class Features:
    """The finalized levels, in memory and in the store. Call `load` once before and `close` after.

    Until `load` has read the levels, and while they cannot be read, no feature is finalized.
    """

    def __init__(
        self,
        store: MetadataStore,
        supported: Supported,
        node_id: int,
        others: Others = alone,
    ) -> None:
        self.supported = supported
        # The levels as they were last read or written. `_UNKNOWN` while they cannot be read.
        self._finalized = _UNKNOWN
        # The reason why the node cannot be read, or "".
        self.unreadable = ""
        self._store = store
        self._node_id = node_id
        self._others = others
        # The highest epoch that was ever seen. A new node continues behind it.
        self._epoch_max = 0
        # The node as last read, also with levels that are not supported. None if it is gone or was
        # never there. An older reading is dropped.
        self._reading: _Reading | None = None
        self._watch = NodeWatch(store, FEATURES, self, "features")
        # Held while a change is made, so that changes on this gateway do not hinder each other.
        self._changing = asyncio.Lock()
        # The task of `begin_new_forms`, if it was called. One runs at a time.
        self._beginning: asyncio.Task[None] | None = None
        # True after `begin_new_forms` logged that the level is too low. It is logged once.
        self._logged_low = False

    # -- from memory --------------------------------------------------------------------------

    @property
    def finalized(self) -> Finalized:
        """The finalized levels. Their epoch is -1 while they are unknown."""
        return self._finalized

    def level(self, name: str) -> int:
        """Return the finalized level of a feature, 0 if it is not finalized."""
        return self._finalized.level(name)

    def may_write(self, form: Form) -> bool:
        """Return True if data of the form may be written."""
        return self._finalized.may_write(form)

    @property
    def transactions_may_exist(self) -> bool:
        """False if it is certain that no log of the cluster had a transaction or was compacted.

        A gateway records it before the first such record. A gateway that takes a partition over
        afterwards has read it by then: ZooKeeper sends it the event of the record before the answer
        to its claim, and it asks for the node at once.
        """
        known = self._finalized
        return known.epoch < 0 or known.used >= Form.TRANSACTIONS

    @property
    def writes_new_forms(self) -> bool:
        """True if data of transactions may be written. See `begin_new_forms`."""
        return self.may_write(Form.TRANSACTIONS)

    # -- life ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the levels, and follow the changes of other gateways from now on.

        Levels that cannot be read are logged. Raises CorruptFormat for levels that this gateway
        does not support, and LedgerError.
        """
        await self._create_parent()
        await self._watch.start()
        if self._reading is not None and self.unreadable:
            raise CorruptFormat(self.unreadable)
        if self._reading is None and not self.unreadable:
            self._finalized = before_features((await self._form())[0].form)

    async def close(self) -> None:
        """Stop following the changes of other gateways."""
        await self._watch.stop()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)

    # -- changes ------------------------------------------------------------------------------

    async def update(self, updates: Collection[FeatureUpdate], *, validate_only: bool) -> None:
        """Change all of these levels or none. The change is durable when this returns.

        Raises FeatureRefused, CorruptFormat if the node cannot be read, and LedgerError.
        """
        async with self._changing:
            others = await self._others()
            cluster = Cluster(self._node_id, self.supported, others)
            await self._change(lambda before: changed(before, updates, cluster), validate_only)

    def begin_new_forms(self) -> None:
        """Record soon that data of transactions may exist, if the level of their form is finalized.

        Does nothing if that is recorded. One line is logged if the level is too low.
        """
        if self.writes_new_forms or (self._beginning is not None and not self._beginning.done()):
            return
        if self.level(GATEWAY_VERSION) < Form.TRANSACTIONS:
            if not self._logged_low:
                self._logged_low = True
                logger().warning(
                    "transactions are refused until the data of the cluster have their form: run "
                    "`gateway feature upgrade`",
                    feature=GATEWAY_VERSION,
                    level=self.level(GATEWAY_VERSION),
                    needed=int(Form.TRANSACTIONS),
                )
            return
        self._beginning = start_once("the record of new forms", self._begin())

    async def _begin(self) -> None:
        try:
            async with self._changing:
                await self._change(beginning, validate_only=False)
        except LedgerError as error:
            logger().warning("cannot record that new forms are written", reason=str(error))

    async def _change(self, make: Callable[[Finalized], Finalized], validate_only: bool) -> None:
        """Replace the levels by `make(levels)`. Runs `make` again if they changed meanwhile."""
        while True:
            await self._store.sync(FEATURES)
            before, node = await self._read()
            after = make(before)
            if after == before or validate_only:
                return
            if after.levels != before.levels:
                after = replace(after, epoch=max(after.epoch, self._epoch_max + 1))
            stored = StoredLevels(after, uuid4().hex if node is None else node.stored.life)
            ops = await self._ops(stored, node)
            try:
                await self._store.multi(ops)
            except (BadVersion, NodeExists, NoNode):
                continue
            self._take(_Reading(stored, 0 if node is None else node.version + 1))
            logger().info("features were changed", epoch=after.epoch, levels=dict(after.levels))
            return

    async def _read(self) -> tuple[Finalized, _Reading | None]:
        """Return the levels, and the node that has them, or None if it does not exist."""
        try:
            node = await self._store.get(LEVELS)
        except NoNode:
            await self._create_parent()
            return before_features((await self._form())[0].form), None
        reading = _Reading(decode_levels(node.data), node.version)
        self._take(reading)
        return reading.stored.finalized, reading

    async def _create_parent(self) -> None:
        try:
            await self._store.create(FEATURES, parents=True)
        except NodeExists:
            pass

    async def _form(self) -> tuple[ClusterForm, int]:
        node = await self._store.get(CLUSTER_ID)
        return decode_form(node.data), node.version

    async def _ops(self, after: StoredLevels, node: _Reading | None) -> list[Op]:
        """Return the writes of a change, with the cluster's form if its level changes."""
        data = encode_levels(after.finalized, after.life)
        ops: list[Op] = [Create(LEVELS, data) if node is None else Set(LEVELS, data, node.version)]
        layout, version = await self._form()
        form = after.finalized.level(GATEWAY_VERSION)
        if layout.form == form:
            ops.append(Check(CLUSTER_ID, version))
        else:
            ops.append(Set(CLUSTER_ID, layout._replace(form=form).encode(), version))
        return ops

    def _take(self, reading: _Reading) -> None:
        """Use levels as they were read or written, unless they are older than the known ones."""
        known = self._reading
        if known and known.life == reading.life and known.version > reading.version:
            return
        self._reading = reading
        fault = _unsupported(reading.stored.finalized, self.supported)
        if fault:  # another gateway of an older release has just joined, or this one is older
            self._lose(fault)
            return
        self._finalized, self.unreadable = reading.stored.finalized, ""
        self._epoch_max = max(self._epoch_max, self._finalized.epoch)

    def _lose(self, reason: str) -> None:
        """Forget the levels: this gateway does not act on levels that it cannot read."""
        self._finalized = _UNKNOWN
        if reason != self.unreadable:
            logger().error("the features of the cluster cannot be read", reason=reason)
        self.unreadable = reason

    # -- the `NodeListener` of the watch ------------------------------------------------------

    def known_names(self) -> set[str]:
        return set() if self._reading is None else {NAME}

    def on_found(self, name: str, node: Node) -> None:
        if name != NAME:
            return
        try:
            self._take(_Reading(decode_levels(node.data), node.version))
        except CorruptFormat as error:
            known = self._reading
            if known is None or node.version > known.version:
                self._lose(str(error))

    def on_gone(self, name: str) -> None:
        if name == NAME:
            self._reading = None
            self._lose(f"{LEVELS} was deleted")

    def on_round_over(self) -> None:
        """Do nothing: one node was read at most."""


def _unsupported(levels: Finalized, supported: Supported) -> str:
    """Return which finalized level is not supported, or "" if all are."""
    for name, level in levels.levels.items():
        known = supported.get(name)
        if name == GROUP_VERSION and known is not None:
            continue  # without log segments a gateway refuses these groups, and serves the others
        if known is None or not known.min <= level <= known.max:
            bounds = "no level" if known is None else f"levels {known}"
            return f"{LEVELS}: {shown(name)} has level {level}; this gateway supports {bounds}"
    return ""
