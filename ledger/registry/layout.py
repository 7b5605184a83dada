"""The paths of a cluster below `/ledgers`, and the creation of its layout.

A cluster laid out by Apache BookKeeper works unchanged, and vice versa, as long as its ledgers use
the hierarchical layout.
Source: BookKeeper, `util/BookKeeperConstants.java`, `discover/ZKRegistrationManager.java`,
`meta/LedgerLayout.java`.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.errors import ForeignLayout, NodeExists, NoNode
from ledger.ports.metadata import Create, MetadataStore

LEDGERS = "/ledgers"
LAYOUT = f"{LEDGERS}/LAYOUT"
INSTANCE_ID = f"{LEDGERS}/INSTANCEID"
COOKIES = f"{LEDGERS}/cookies"
AVAILABLE = f"{LEDGERS}/available"
READONLY = f"{AVAILABLE}/readonly"
UNDERREPLICATION = f"{LEDGERS}/underreplication"
ID_GENERATOR = f"{LEDGERS}/idgen"
LONG_ID_GENERATOR = f"{LEDGERS}/idgen-long"

_FACTORY = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
_LAYOUT_DATA = f"2\n{_FACTORY}:1".encode()


async def init_layout(store: MetadataStore, new_instance_id: Callable[[], str]) -> str:
    """Lay out the cluster if necessary; return its instance id, the same for every caller.

    Safe to call repeatedly and concurrently, because existing nodes are not changed. Raises
    ForeignLayout if ledgers use another layout. After MetadataUnavailable, call again.
    """
    instance_id = new_instance_id()
    if not await store.exists(LEDGERS):
        nodes = (LEDGERS, AVAILABLE, READONLY)
        try:
            await store.multi(
                [*map(Create, nodes), Create(INSTANCE_ID, instance_id.encode())],
            )
        except NodeExists:
            pass  # another process created the layout first; complete it
    await _check_or_create_layout(store)
    for path, data in ((AVAILABLE, b""), (READONLY, b""), (INSTANCE_ID, instance_id.encode())):
        await _create_if_missing(store, path, data)
    return await read_instance_id(store)


async def read_instance_id(store: MetadataStore, zookeeper: str = "") -> str:
    """Read the cluster's instance id without creating anything.

    Raises ForeignLayout if there is no cluster. `zookeeper` is the address used,
    `host:port/chroot`. The error names the chroot, because a misspelt chroot leads to an empty
    place.
    """
    try:
        node = await store.get(INSTANCE_ID)
    except NoNode as error:
        _, slash, path = zookeeper.partition("/")
        raise ForeignLayout(
            f"no cluster is laid out here: {slash}{path}{INSTANCE_ID} is missing"
            + (f" (is the chroot {slash}{path} right?)" if path else "")
        ) from error
    return node.data.decode(errors="replace").strip()


async def _check_or_create_layout(store: MetadataStore) -> None:
    await _create_if_missing(store, LAYOUT, _LAYOUT_DATA)
    data = (await store.get(LAYOUT)).data
    format_version, _, layout = data.decode(errors="replace").partition("\n")
    if format_version not in ("1", "2") or layout.strip() != f"{_FACTORY}:1":
        raise ForeignLayout(
            f"{LAYOUT} contains {data[:200]!r}; only {_FACTORY}, version 1, is supported"
        )


async def _create_if_missing(store: MetadataStore, path: str, data: bytes) -> None:
    if await store.exists(path):
        return
    try:
        await store.create(path, data, parents=True)
    except NodeExists:
        pass  # another process created the node
