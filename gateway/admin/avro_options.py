"""The options of `topic produce` and `topic consume` that name a schema of Avro."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ledger.command_line import units
from ledger.command_line.output import Format, usage
from ledger.command_line.program import Value, option

if TYPE_CHECKING:
    from gateway.admin.avro_input import AvroTarget
    from gateway.admin.avro_schema import Schema
    from gateway.admin.consume_avro import AvroValues
    from gateway.admin.schema_registry import Registry

F = TypeVar("F", bound=Callable[..., Any])

_ID_MAX = 2**31 - 1

schema_registry_option = option(
    "--schema-registry",
    metavar="URL",
    envvar="GATEWAY_SCHEMA_REGISTRY",
    show_envvar=True,
    help="Schema registry, such as http://localhost:8081 or https://user:password@host.",
)


def target_options(function: F) -> F:
    """Add the options that choose the schema of records to write."""
    schema = option(
        "--schema", metavar="FILE", help="Schema for --input avro (.avsc). A registry adds it."
    )
    subject = option(
        "--schema-subject",
        metavar="NAME",
        shown="TOPIC-value",
        help="Subject of the schema in the registry.",
    )
    number = option(
        "--schema-id",
        type=Value("id", units.whole(0, _ID_MAX)),
        shown="the latest of the subject",
        help="Id of the schema in the registry.",
    )
    return schema(schema_registry_option(subject(number(function))))


class _Reading(Protocol):
    """What `topic consume` was given."""

    @property
    def shown(self) -> str: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def schema_registry(self) -> str | None: ...


def avro_values(flags: _Reading, output: Format) -> AvroValues | None:
    """Return what decodes the values, or None if they are not to be decoded."""
    strict = flags.shown == "avro"
    if strict and flags.schema is None and not flags.schema_registry:
        usage("--value avro needs --schema FILE or --schema-registry URL", output)
    if flags.schema is not None and not strict:
        usage("--schema needs --value avro", output)
    if not strict and (flags.shown != "auto" or not flags.schema_registry):
        return None
    by = _read_schema(flags.schema, output) or _registry(flags.schema_registry, output)
    assert by is not None
    from gateway.admin.consume_avro import AvroValues

    return AvroValues(by, strict=strict)


def avro_target(flags: Any, output: Format) -> AvroTarget | None:
    """Return the schema of the values that `topic produce` writes; None for other forms."""
    if flags.form != "avro":
        for name in ("schema", "schema_subject", "schema_id"):
            if getattr(flags, name) is not None:
                usage(f"--{name.replace('_', '-')} needs --input avro", output)
        return None
    registry = _registry(flags.schema_registry, output)
    for name in ("schema_subject", "schema_id"):
        if registry is None and getattr(flags, name) is not None:
            usage(f"--{name.replace('_', '-')} needs --schema-registry", output)
    if flags.schema_id is not None and flags.schema is not None:
        usage("--schema and --schema-id: pass only one of them", output)
    if flags.tombstone:
        usage("--tombstone and --input avro: a tombstone has no value", output)
    schema = _read_schema(flags.schema, output)
    _require_package(output)
    from gateway.admin.avro_input import AvroTarget

    subject = flags.schema_subject or f"{flags.name}-value"
    return AvroTarget(schema, registry, subject, flags.schema_id)


def _require_package(output: Format) -> None:
    from importlib.util import find_spec

    from gateway.admin.avro_schema import AvroMissing

    if find_spec("fastavro") is None:
        usage(str(AvroMissing()), output)


def _read_schema(path: str | None, output: Format) -> Schema | None:
    if path is None:
        return None
    from gateway.admin.avro_input import read_schema
    from gateway.admin.avro_schema import InvalidSchema

    _require_package(output)
    try:
        return read_schema(path)
    except (OSError, ValueError) as error:
        reason = error if isinstance(error, InvalidSchema) else getattr(error, "strerror", error)
        usage(f"--schema {path}: {reason}", output)


def _registry(url: str | None, output: Format) -> Registry | None:
    if not url:
        return None
    from gateway.admin.schema_registry import Registry

    _require_package(output)
    try:
        return Registry(url)
    except ValueError as error:  # without the address, which may have a password
        usage(f"--schema-registry: {error}", output)
