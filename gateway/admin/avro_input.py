"""The input of `topic produce -i avro`: lines of JSON, or an Avro object container file.

Each line, and each datum of a file, becomes the value of a record. With a schema registry, the
magic byte and the id of the schema come before it, as Confluent's clients write them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gateway.admin.avro_container import MAGIC, Blocks, BrokenContainer, read_header
from gateway.admin.avro_schema import InvalidSchema, Schema
from gateway.admin.avro_types import Mismatch
from gateway.admin.bad_input import BadInput
from gateway.admin.record_input import BrokenInput, Defaults, InputFormat, Item, RecordInput
from gateway.admin.record_json import BadRecord, Record
from gateway.admin.schema_registry import Registry
from ledger.command_line.exit_codes import EXIT_BAD_INPUT

_JSON_PER_BYTE: Final = 6  # a control character has six characters in JSON
_NO_SCHEMA: Final = "lines of JSON need --schema FILE or --schema-registry URL"


class AvroTarget:
    """The schema of the values, and the bytes before each of them. Shared by all files."""

    def __init__(
        self,
        schema: Schema | None,
        registry: Registry | None,
        subject: str,
        schema_id: int | None = None,
    ) -> None:
        """Take what the command names. Without a schema, it is the registry's or the file's."""
        self._given = schema
        self._registry = registry
        self._subject = subject
        self._schema_id = schema_id
        # The schema of lines of JSON, and its head, once it is known.
        self._found: tuple[Schema, bytes] | None = None

    async def of_lines(self) -> tuple[Schema, bytes]:
        """Return the schema of lines of JSON. Raises BadInput."""
        if self._found is None:
            self._found = await self._looked_up()
        return self._found

    async def _looked_up(self) -> tuple[Schema, bytes]:
        registry, schema = self._registry, self._given
        if registry is None:
            if schema is None:
                raise BadInput(_NO_SCHEMA, "BAD_INPUT", EXIT_BAD_INPUT)
            return schema, b""
        if self._schema_id is not None:
            head = b"\0" + self._schema_id.to_bytes(4, "big")
            return await registry.by_id(self._schema_id), head
        if schema is not None:
            found = await registry.register(self._subject, schema)
        else:
            found = await registry.latest(self._subject)
        return found.schema, found.head

    async def of_file(self, schema: Schema) -> bytes:
        """Return the head of the datums of a file with this schema.

        Raises Mismatch if the command names another schema, and BadInput.
        """
        if self._given is None and self._schema_id is None:
            if self._registry is None:
                return b""
            return (await self._registry.register(self._subject, schema)).head
        wanted, head = await self.of_lines()
        if not wanted.same_as(schema):
            named = "--schema" if self._schema_id is None else "--schema-id"
            raise Mismatch(f"has another schema than {named}")
        return head


class AvroInput:
    """One file, or stdin. `prepare` is called with each piece of it before `feed`."""

    def __init__(self, target: AvroTarget, defaults: Defaults, bytes_max: int) -> None:
        self._target = target
        self._defaults = defaults
        self._bytes_max = bytes_max
        # The begin of the file, until it is known what it is.
        self._begin = b""
        # What `feed` reads next in place of its argument: the begin, without the header.
        self._rest: bytes | None = None
        self._reader: RecordInput | _Container | None = None

    @property
    def unit(self) -> str:
        """What a record of the input is called in messages."""
        return "record" if isinstance(self._reader, _Container) else "line"

    async def prepare(self, data: bytes) -> None:
        """Look at the next bytes, or at the end if there are none. Raises BrokenInput, BadInput."""
        if self._reader is not None:
            return
        self._begin += data
        short = len(self._begin) < len(MAGIC) and MAGIC.startswith(self._begin)
        if short and data:
            return
        if not self._begin.startswith(MAGIC):
            schema, head = await self._target.of_lines()
            bytes_max = _JSON_PER_BYTE * self._bytes_max
            decode = _Lines(schema, head, self._defaults).decode
            self._reader = RecordInput(InputFormat.avro, self._defaults, bytes_max, decode)
            self._rest, self._begin = self._begin, b""
            return
        try:
            await self._open(at_end=not data)
        except (BrokenContainer, InvalidSchema) as error:
            raise BrokenInput(f"not an Avro file: {error}") from None
        except Mismatch as error:
            raise BrokenInput(error.reason) from None

    async def _open(self, *, at_end: bool) -> None:
        header = read_header(self._begin)
        if header is None:
            if at_end:
                raise BrokenContainer("it ends within the header")
            return
        schema = Schema(header.schema)
        head = await self._target.of_file(schema)
        self._rest, self._begin = self._begin[header.size :], b""
        self._reader = _Container(Blocks(header, schema), head, self._defaults)

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield the records that end within these bytes, and bad ones in their place."""
        if self._reader is None:
            return iter(())
        if self._rest is not None:
            data, self._rest = self._rest, None
        return self._reader.feed(data)

    def end(self) -> Iterator[Item]:
        """Yield what follows the last line end."""
        if self._reader is None:
            return
        if self._rest is not None:
            yield from self.feed(b"")
        yield from self._reader.end()


class _Lines:
    """Encodes values of JSON."""

    def __init__(self, schema: Schema, head: bytes, defaults: Defaults) -> None:
        self._schema = schema
        self._head = head
        self._defaults = defaults

    def decode(self, line: bytes) -> Record | None:
        if not line or line.isspace():
            return None
        try:
            value = json.loads(line.decode())
            data = self._schema.encode(value)
        except Mismatch as mismatch:
            raise BadRecord(str(mismatch)) from None
        except json.JSONDecodeError as error:
            raise BadRecord(f"not JSON: {error.msg}", error.colno) from None
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            raise BadRecord("not UTF-8", column) from None
        except RecursionError:
            raise BadRecord("not JSON: nested too deeply") from None
        except ValueError:  # Python's bound on the digits of a number
            raise BadRecord("not JSON: a number has too many digits") from None
        return _record(self._head + data, self._defaults)


class _Container:
    """Passes on the datums of a file."""

    def __init__(self, blocks: Blocks, head: bytes, defaults: Defaults) -> None:
        self._blocks = blocks
        self._head = head
        self._defaults = defaults
        self._number = 0  # of the last record
        self._broken = False  # whether nothing can be read any more

    def feed(self, data: bytes) -> Iterator[Item]:
        if self._broken:
            return
        try:
            for datum in self._blocks.feed(data):
                self._number += 1
                yield self._number, _record(self._head + datum, self._defaults)
        except BrokenContainer as error:
            self._broken = True
            yield self._number + 1, BrokenInput(f"not an Avro file: {error}")

    def end(self) -> Iterator[Item]:
        if self._broken:
            return
        try:
            self._blocks.end()
        except BrokenContainer as error:
            yield self._number + 1, BrokenInput(f"not an Avro file: {error}")


def _record(value: bytes, defaults: Defaults) -> Record:
    key, headers = defaults.key, defaults.headers
    return Record(value, key, headers, None, defaults.partition, None, defaults.timestamp)


def read_schema(path: str) -> Any:
    """Return the schema in a file. Raises OSError, InvalidSchema and AvroMissing."""
    from pathlib import Path

    from gateway.admin.avro_schema import SCHEMA_BYTES_MAX

    with Path(path).open("rb") as file:
        data = file.read(SCHEMA_BYTES_MAX + 1)
    try:
        return Schema(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InvalidSchema("is not UTF-8") from None
