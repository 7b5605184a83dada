"""A file system in memory, for tests and benches of an archive's log that need no disk."""

from __future__ import annotations

from gateway.pipelines.shared.errors import JobError


class MemoryFiles:
    """The port `Files` over a dictionary. `now` is the clock, in milliseconds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000
        # The contents and the time of each file by its path.
        self.files: dict[str, tuple[bytes, int]] = {}
        # The number of files that were read, and of names that were listed.
        self.reads = 0
        self.listed = 0

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return False
        self.files[path] = data, self.now
        return True

    def read(self, path: str) -> bytes | None:
        found = self.files.get(path)
        self.reads += found is not None
        return None if found is None else found[0]

    def fetch(self, path: str) -> bool:
        return path in self.files

    def names(self, directory: str) -> list[str]:
        below = f"{directory}/"
        names = {
            path.removeprefix(below).partition("/")[0]
            for path in self.files
            if path.startswith(below)
        }
        self.listed += len(names)
        return sorted(names)

    def move(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
        elif target not in self.files:
            raise JobError(f"{source}: it does not exist", "FILE_SYSTEM")

    def remove(self, path: str) -> None:
        for each in [each for each in self.files if each == path or each.startswith(f"{path}/")]:
            del self.files[each]

    def size(self, path: str) -> int | None:
        found = self.files.get(path)
        return None if found is None else len(found[0])

    def modified_ms(self, path: str) -> int | None:
        found = self.files.get(path)
        return None if found is None else found[1]

    def now_ms(self, directory: str) -> int:
        del directory
        return self.now
