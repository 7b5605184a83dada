"""The changes of a metadata store that others may only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ledger.errors import ReadOnlyStore
from ledger.ports.metadata import ANY_VERSION, Op


class RefusedChanges:
    """The changes of the port `MetadataStore`; each raises `ReadOnlyStore`."""

    _refusing = "this store"  # who shows a path, for the message of the error

    async def set(self, path: str, data: bytes, version: int) -> int:
        self._refuse(path)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        self._refuse(path)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._refuse(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._refuse(ops[0].path if ops else "/")

    def _refuse(self, path: str) -> NoReturn:
        raise ReadOnlyStore(f"{self._refusing} shows {path} for reading only")
