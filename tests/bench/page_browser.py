"""A browser of the page that draws nothing: one connection, and a process that looks every second.

    python -m tests.bench.page_browser HOST:PORT

The process requests the overview and the topics once a second until it is ended, and prints `open`
when both were answered for the first time. A browser is another process than the producer, whose
times it must not change.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import sys
import threading
import time

LOOKS = ("/", "/topics?sort=rate")
EVERY_S = 1.0
_ASSET = re.compile(r'(?:src|href)="(/static/[^"]+)"')


class Browser:
    """One connection to the page at `address`, HOST:PORT."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = http.client.HTTPConnection(address, timeout=30.0)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> bytes:
        """Return the body of a page."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{path}: {answer.status} {body[:200]!r}"
        return body

    def total(self, path: str) -> int:
        return json.loads(self.get(f"/api/v1{path}"))["total"]

    def times_ms(self, path: str, requests: int) -> list[float]:
        found: list[float] = []
        for _ in range(requests):
            began_s = time.perf_counter()
            self.get(path)
            found.append((time.perf_counter() - began_s) * 1e3)
        return found

    def gzipped_bytes(self, path: str) -> int:
        """Return the bytes of a page and of all that it loads, each compressed."""
        body = self.get(path)
        assets = sorted(set(_ASSET.findall(body.decode())))
        return sum(len(gzip.compress(each, 6)) for each in (body, *map(self.get, assets)))


def main() -> None:
    browser = Browser(sys.argv[1])
    looks, never = 0, threading.Event()
    due_s = time.monotonic()
    while True:
        for path in LOOKS:
            browser.get(path)
        looks += 1
        if looks == 1:
            print("open", flush=True)
        due_s += EVERY_S
        never.wait(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main()
