"""The recorded answers of Apache Kafka 4.3, one line of JSON for each."""

from __future__ import annotations

import json
from pathlib import Path

import zstandard

from tests.compat.rights.servers import Answers

FILE = Path(__file__).with_name("recorded.jsonl.zst")


def write_recorded(answers: Answers) -> None:
    """Write the answers in their order."""
    lines = [json.dumps([title, answer]) + "\n" for title, answer in answers.items()]
    FILE.write_bytes(zstandard.ZstdCompressor(level=19).compress("".join(lines).encode()))


def read_recorded() -> Answers:
    """Return the answers in their order."""
    text = zstandard.ZstdDecompressor().decompress(FILE.read_bytes())
    return dict(json.loads(line) for line in text.decode().splitlines())
