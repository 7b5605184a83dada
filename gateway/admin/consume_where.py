"""The filter `topic consume --where`: an expression of CEL, evaluated in a process of its own.

A record for which the expression fails, for instance because its value lacks the field, does not
match. Such records are counted, and the first reason is kept.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import gateway
from gateway.admin.bad_input import BadInput
from gateway.admin.consume_batches import Record
from gateway.admin.where_process import (
    CPU_S_MAX,
    FAILED,
    HEAD,
    MATCH,
    MEMORY_BYTES_MAX,
    WRONG,
    Row,
    variables,
)
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_USAGE
from ledger.command_line.extras import install_command
from ledger.command_line.units import show_size

_MODULE: Final = "gateway.admin.where_process"
_ROOT: Final = str(Path(gateway.__file__).resolve().parents[1])
_START_S_MAX: Final = 30.0
_EXPRESSION_MAX: Final = 10_000  # characters
_VALUE_BYTES_MAX: Final = 2**20
"""The expression is not evaluated for a larger value or key, and the record does not match."""
_BATCH_BYTES: Final = 2**20
_BATCH_RECORDS: Final = 500
_REASON_MAX: Final = 200  # characters
_NO_TIME: Final = -1
_PLACE: Final = re.compile(r"<input>:(\d+):(\d+): *(?:Syntax error: *)?([^\n]*)")
_INNER: Final = re.compile(r'msg: "([^"]*)"')
_BOUND_NAME: Final = re.compile(r"\.\w+\s*\(\s*(\w+)\s*,(?:\s*(\w+)\s*,)?")
"""The variables of a macro such as `value.items.all(item, item.price > 1)`."""


class InvalidExpression(ValueError):
    """An expression that cannot be evaluated for any record. The text gives place and reason."""


class CelMissing(Exception):
    """The package that evaluates CEL is not installed."""

    def __init__(self) -> None:
        super().__init__(
            f"--where needs the package common-expression-language: {install_command('cel')}"
        )


class Where:
    """An expression, and the process that evaluates it. Starting it takes about 0.1 s."""

    def __init__(self, expression: str) -> None:
        """Start the process. Raises InvalidExpression and CelMissing."""
        if len(expression) > _EXPRESSION_MAX:
            raise InvalidExpression(f"has more than {_EXPRESSION_MAX} characters")
        if find_spec("cel") is None:
            raise CelMissing
        self._expression = expression
        # Records for which the expression failed, and the first reason with its place.
        self.failed = 0
        self.first_reason = ""
        self._link: socket.socket
        self._child: subprocess.Popen[bytes]
        self._start()
        try:
            self._used = self._compiled()
        except BaseException:
            self.close()
            raise
        self._link.setblocking(False)

    def close(self) -> None:
        """End the process."""
        self._link.close()
        self._child.kill()
        self._child.wait()

    def summary(self) -> str:
        """Return a line about the records that could not be evaluated; empty if there is none."""
        if not self.failed:
            return ""
        count = "1 record" if self.failed == 1 else f"{self.failed} records"
        return f"--where failed for {count}, not printed; the first is {self.first_reason}"

    async def matching(self, topic: str, index: int, records: Sequence[Record]) -> list[Record]:
        """Return the records that match. Raises BadInput if a result is neither true nor false."""
        found: list[Record] = []
        for batch in self._batches(topic, index, records):
            found += await self._evaluated(topic, index, batch)
        return found

    def _batches(
        self, topic: str, index: int, records: Iterable[Record]
    ) -> Iterator[Sequence[Record]]:
        """Yield the records in pieces that a process evaluates at once, without too large ones."""
        batch: list[Record] = []
        size = 0
        for record in records:
            used = self._bytes_of(record)
            if used > _VALUE_BYTES_MAX:
                limit = show_size(_VALUE_BYTES_MAX)
                reason = f"the record has {used} bytes, and --where takes at most {limit}"
                self._fail(topic, index, record, reason)
                continue
            if batch and (size + used > _BATCH_BYTES or len(batch) == _BATCH_RECORDS):
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += used
        if batch:
            yield batch

    def _bytes_of(self, record: Record) -> int:
        """Return how many bytes of the record the expression uses."""
        size = len(record.key or b"") if "key" in self._used else 0
        size += len(record.value or b"") if "value" in self._used else 0
        if "headers" in self._used:
            size += sum(len(name) + len(data or b"") for name, data in record.headers)
        return size

    async def _evaluated(
        self, topic: str, index: int, records: Sequence[Record]
    ) -> Sequence[Record]:
        """Return those that match. If the process dies of them, evaluate fewer at once."""
        try:
            verdicts, reason = await self._ask(
                (topic, index, [self._row(each) for each in records])
            )
        except OSError:
            why = await self._restarted()
            if len(records) == 1:
                self._fail(topic, index, records[0], why)
                return ()
            half = len(records) // 2
            first = await self._evaluated(topic, index, records[:half])
            return [*first, *await self._evaluated(topic, index, records[half:])]
        if verdicts.endswith(bytes((WRONG,))):
            place = f"{topic}/{index}@{records[len(verdicts) - 1].offset}"
            raise BadInput(f"--where: {place}: {reason}", "USAGE", EXIT_USAGE)
        pairs = list(zip(records, verdicts, strict=True))
        for record, verdict in pairs:
            if verdict == FAILED:
                self._fail(topic, index, record, reason)
        return [record for record, verdict in pairs if verdict == MATCH]

    def _fail(self, topic: str, index: int, record: Record, reason: str) -> None:
        self.failed += 1
        if not self.first_reason:
            reason = " ".join(reason.split())
            shown = reason if len(reason) <= _REASON_MAX else f"{reason[:_REASON_MAX]}..."
            self.first_reason = f"{topic}/{index}@{record.offset}: {shown}"

    def _row(self, record: Record) -> Row:
        key, value, used = record.key, record.value, self._used
        timestamp = None if record.timestamp in (None, _NO_TIME) else record.timestamp
        return (
            record.offset,
            timestamp,
            key if "key" in used else None,
            -1 if key is None else len(key),
            value if "value" in used else None,
            -1 if value is None else len(value),
            [*map(tuple, record.headers)] if "headers" in used else (),
        )

    # the process

    def _start(self) -> None:
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._link, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                # -P: a directory `gateway` where this program was started is not imported.
                [sys.executable, "-P", "-m", _MODULE],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C in a terminal does not reach it
            )

    def _compiled(self) -> frozenset[str]:
        """Return the variables that the expression uses."""
        self._link.settimeout(_START_S_MAX)
        try:
            self._link.sendall(_frame(self._expression))
            with self._link.makefile("rb") as file:
                head = file.read(HEAD.size)
                if not head:
                    raise ConnectionResetError
                error, used = marshal.loads(file.read(HEAD.unpack(head)[0]))
        except OSError:
            raise InvalidExpression("is too complex to be compiled") from None
        if error is not None:
            raise InvalidExpression(_syntax_error(error))
        known = variables()
        bound = {name for pair in _BOUND_NAME.findall(self._expression) for name in pair}
        unknown = [name for name in used if name not in known and name not in bound]
        if unknown:
            place = re.search(rf"\b{re.escape(unknown[0])}\b", self._expression)
            column = place.start() + 1 if place else 1
            raise InvalidExpression(
                f"column {column}: no variable {unknown[0]}; there are {', '.join(known)}"
            )
        return frozenset(used)

    async def _ask(self, request: Any) -> tuple[Any, Any]:
        """Return the answer of the process. Raises OSError if it has ended."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._link, _frame(request))
        (size,) = HEAD.unpack(await self._received(HEAD.size))
        return marshal.loads(await self._received(size))

    async def _received(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            part = await loop.sock_recv(self._link, size - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return bytes(data)

    async def _restarted(self) -> str:
        """Start the process again. Returns the reason for which it died.

        Raises BadInput if it dies again while it compiles the expression, which it did before.
        """
        self._link.close()
        self._child.kill()
        ended = self._child.wait()
        try:
            self._start()
            self._link.setblocking(False)
            error, _ = await self._ask(self._expression)
        except OSError:
            error = "its process ended while it compiled the expression again"
        if error is not None:
            raise BadInput(f"--where: {_syntax_error(error)}", "WHERE_FAILED", EXIT_FAILED)
        if ended == -signal.SIGPROF:
            return f"the expression needs more than {CPU_S_MAX:g} s of CPU time"
        limit = show_size(MEMORY_BYTES_MAX)
        return f"its process was ended by signal {-ended}; it may use {limit} of memory"


def _frame(request: Any) -> bytes:
    data = marshal.dumps(request)
    return HEAD.pack(len(data)) + data


def _syntax_error(text: str) -> str:
    """Return the place and the reason of the first error of CEL's parser."""
    found = _PLACE.search(text)
    if found is None:
        return " ".join(text.split())
    line, column, reason = found.groups()
    place = f"column {column}" if line == "1" else f"line {line} column {column}"
    inner = _INNER.search(reason)
    reason = reason if inner is None else inner[1]
    return f"{place}: {reason.partition(' expecting {')[0]}"
