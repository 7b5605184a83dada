"""Records the answers of Apache Kafka 4.3 to logins by SASL, and compares those of our port.

`python -m tests.compat.logins --replay` starts no Kafka; `--tokens` records the answers to tokens
instead. Exits with 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.compat.logins import servers, tokens
from tests.compat.logins.cases import CASES
from tests.compat.logins.intended import reason_of
from tests.gateway.issuer import Issuer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.logins", description=__doc__)
    parser.add_argument("--replay", action="store_true", help="start no Kafka")
    parser.add_argument("--tokens", action="store_true", help="tokens instead of other logins")
    options = parser.parse_args()
    compared = _tokens if options.tokens else _logins
    with tempfile.TemporaryDirectory() as directory:
        theirs, ours = compared(Path(directory), replay=options.replay)
    known = tokens.INTENDED.get if options.tokens else reason_of
    different = [name for name in theirs if theirs[name] != ours.get(name)]
    unexplained = [name for name in different if known(name) is None]
    for name in unexplained:
        print(f"{name}\n   Kafka {theirs[name]}\n   ours  {ours.get(name)}")
    print(f"{len(theirs)} logins, {len(different)} differ, {len(unexplained)} not intended")
    return 1 if unexplained or theirs.keys() != ours.keys() else 0


def _logins(directory: Path, *, replay: bool) -> tuple[servers.Answers, servers.Answers]:
    """Return the answers of Kafka and ours to the scripts of logins."""
    if not replay:
        with servers.SecureKafka(directory / "kafka") as kafka:
            servers.add_users(kafka)
            servers.write_recorded(asyncio.run(servers.answers_of_kafka(kafka, CASES)))
    return servers.read_recorded(), asyncio.run(servers.answers_of_ours(CASES, directory))


def _tokens(directory: Path, *, replay: bool) -> tuple[tokens.Answers, tokens.Answers]:
    """Return the answers of Kafka and ours to tokens."""
    issuer, stranger = Issuer(), Issuer()
    jwks = tokens.write_jwks(directory, issuer)
    if not replay:
        with tokens.TokenKafka(directory / "kafka", jwks) as kafka:
            given = tokens.tokens(issuer, stranger)
            tokens.write_recorded(asyncio.run(tokens.answers_of_kafka(kafka, given)))
    ours = tokens.answers_of_ours(directory, jwks, tokens.tokens(issuer, stranger))
    return tokens.read_recorded(), asyncio.run(ours)


sys.exit(main())
