"""Generate unique ledger ids.

An id is the number of an ephemeral sequential node, which is then deleted. Ids of 31 bits come from
`idgen`. When these are used up, `idgen-long` is created, and ids come from `idgen-long/HOB-<n>`: n
is in the upper 32 bits, the number in the lower 32. A lost reply only wastes a number. Source:
BookKeeper, `meta/LongZkLedgerIdGenerator.java`, `meta/ZkLedgerIdGenerator.java`.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.errors import MetadataUnavailable, NodeExists, NoNode, NotEmpty
from ledger.ids import LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.registry.layout import ID_GENERATOR, LONG_ID_GENERATOR

_NUMBER = "ID-"
_HIGH = "HOB-"
_NUMBERS_END = 2**31 - 1  # the store's counter wraps here
_HIGH_KEPT = 3  # HOB nodes kept, because another process may still use an older one


class TakenId(NamedTuple):
    """A new ledger id, and the node from which it was taken."""

    ledger: LedgerId
    node: str


async def next_ledger_id(store: MetadataStore) -> LedgerId:
    """Return an id that no other caller gets. After MetadataUnavailable, call again."""
    taken = await take_ledger_id(store)
    await forget_ledger_id(store, taken)
    return taken.ledger


async def first_unused_ledger(store: MetadataStore) -> LedgerId:
    """Return an id above every existing ledger and below every later one. Uses up one id."""
    return await next_ledger_id(store)


async def take_ledger_id(store: MetadataStore) -> TakenId:
    """Take an id as `next_ledger_id` does, but keep its node until `forget_ledger_id`."""
    if not await store.exists(LONG_ID_GENERATOR):
        node, number = await _count(store, ID_GENERATOR)
        if number is not None:
            return TakenId(LedgerId(number), node)
        await _forget(store, node)
        await _create(store, LONG_ID_GENERATOR)
    return await _take_long_id(store)


async def forget_ledger_id(store: MetadataStore, taken: TakenId) -> None:
    """Delete the id's node. If that fails, the node expires with the session."""
    await _forget(store, taken.node)


async def _take_long_id(store: MetadataStore) -> TakenId:
    """Return an id from the newest HOB node; create the next HOB node if it is used up."""
    while True:
        highs = await _highs(store)
        high = highs[-1] if highs else 1
        if not highs:
            await _create(store, _high_path(high))
        try:
            node, number = await _count(store, _high_path(high), parents=False)
        except NoNode:
            continue  # other processes use a newer HOB node and have deleted this one
        if number is not None:
            await _clear(store, highs[:-_HIGH_KEPT])
            return TakenId(LedgerId(high << 32 | number), node)
        await _forget(store, node)
        await _create(store, _high_path(high + 1))


async def _count(
    store: MetadataStore, parent: str, *, parents: bool = True
) -> tuple[str, int | None]:
    """Create a sequential node below `parent`.

    Returns the node with its number, or with None if the counter has wrapped.
    """
    prefix = f"{parent}/{_NUMBER}"
    node = await store.create(prefix, ephemeral=True, sequential=True, parents=parents)
    number = int(node.removeprefix(prefix))
    return node, number if 0 <= number < _NUMBERS_END else None


async def _highs(store: MetadataStore) -> list[int]:
    names = await store.children(LONG_ID_GENERATOR)
    numbers = (name.removeprefix(_HIGH) for name in names if name.startswith(_HIGH))
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


def _high_path(high: int) -> str:
    return f"{LONG_ID_GENERATOR}/{_HIGH}{high:010d}"


async def _create(store: MetadataStore, path: str) -> None:
    try:
        await store.create(path, parents=True)
    except NodeExists:
        pass  # another process created the node


async def _clear(store: MetadataStore, highs: list[int]) -> None:
    """Delete the HOB nodes `highs`, ignoring errors."""
    for high in highs:
        await _forget(store, _high_path(high))


async def _forget(store: MetadataStore, node: str) -> None:
    try:
        await store.delete(node)
    except (NoNode, NotEmpty, MetadataUnavailable):
        pass  # an ephemeral node expires; a HOB node is deleted with a later id
