"""Values in Avro as `topic consume --value avro` and `--value auto` show them: as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.admin.avro_schema import InvalidDatum, Schema
from gateway.admin.bad_input import BadInput
from gateway.admin.consume_batches import PlainRecord, Record
from gateway.admin.consume_values import one_line_json
from gateway.admin.schema_registry import HEAD_BYTES, MAGIC, Registry
from ledger.command_line.exit_codes import EXIT_BAD_INPUT, EXIT_FAILED

_AUTO: Final = "; --value auto prints it as it is"


class AvroValues:
    """Decodes values by one schema, or by the id before each value."""

    def __init__(self, by: Schema | Registry, *, strict: bool) -> None:
        self._by = by
        # Whether a value that is no Avro is an error. Otherwise it is left as it is.
        self._strict = strict

    async def decode(
        self, topic: str, index: int, records: Sequence[Record]
    ) -> tuple[Sequence[Record], BadInput | None]:
        """Return the records with values of JSON, up to the first that cannot be decoded.

        The error names that record. A registry that cannot be reached is an error in any case.
        """
        found: list[Record] = []
        for record in records:
            try:
                found.append(await self._decoded(record))
            except InvalidDatum as error:
                if self._strict:
                    place = f"{topic}/{index}@{record.offset}"
                    message = f"{place}: the value {error}{_AUTO}"
                    return found, BadInput(message, "BAD_INPUT", EXIT_BAD_INPUT)
                found.append(record)
            except BadInput as error:
                if error.exit_code == EXIT_FAILED and not self._strict:
                    found.append(record)
                    continue
                place = f"{topic}/{index}@{record.offset}"
                return found, BadInput(f"{place}: {error}", error.code, error.exit_code)
        return found, None

    async def _decoded(self, record: Record) -> Record:
        value = record.value
        if value is None:
            return record
        by, start = self._by, 0
        if isinstance(by, Registry):
            if value[:1] != MAGIC or len(value) < HEAD_BYTES:
                raise InvalidDatum("does not begin with a 0 byte and the id of a schema")
            by, start = await by.by_id(int.from_bytes(value[1:HEAD_BYTES], "big")), HEAD_BYTES
        shown = one_line_json(_decode(by, value, start))
        return PlainRecord(
            record.offset,
            -1 if record.timestamp is None else record.timestamp,
            record.timestamp_type or 0,
            record.key,
            shown,
            record.headers,
        )


def _decode(schema: Schema, value: bytes, start: int) -> object:
    try:
        return schema.decode(value, start)
    except InvalidDatum as error:
        if start == 0 and value[:1] == MAGIC and len(value) > HEAD_BYTES:
            hint = "; it may begin with the id of a schema: pass --schema-registry"
            raise InvalidDatum(f"{error}{hint}") from None
        raise
