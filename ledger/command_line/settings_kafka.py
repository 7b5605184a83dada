"""Variables as Apache Kafka's images take them: `KAFKA_` and a key of Kafka's broker in capitals.

`.` is `_` there, `_` is `__`, and `-` is `___`: `KAFKA_NODE_ID` is `node.id`. Loaded only if there
is such a variable. Warnings name variables and never their values, which may be secrets.
Source: Apache Kafka, docker/README.md and docker/docker_official_images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ledger.command_line.settings import (
    HIDDEN,
    NOTICES_MAX,
    Origin,
    Settings,
    cut,
    with_unit,
)

_PREFIX: Final = "KAFKA_"
# Variables that Kubernetes sets for a Service of the name `kafka`, or `kafka-...`.
_OF_SERVICE: Final = re.compile(
    r"(KAFKA(?:_[A-Z0-9]+)*?)_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


def key_of(variable: str) -> str:
    """Return the key of Kafka that a variable names."""
    name = variable.removeprefix(_PREFIX).lower()
    name = re.sub(r"(?<!_)_(?!_)", ".", name)
    return name.replace("___", "-").replace("__", "_")


def take_variables(settings: Settings, variables: Mapping[str, str]) -> None:
    """Take the variables that no flag and no variable of this program overrides."""
    given = {name: text for name, text in variables.items() if name.startswith(_PREFIX) and text}
    of_service = {name for name in given if _is_of_service(name, given)}
    if of_service:
        settings.warn(f"{min(of_service)}: Kubernetes sets this for a Service; it is ignored")
    taken: dict[str, str] = {}  # the variable of each setting that has one
    texts = {key_of(name): text for name, text in given.items() if name not in of_service}
    for name in sorted(given.keys() - of_service):
        key, text = key_of(name), given[name]
        found = settings.table.find_kafka(key)
        if found is None:
            _take_foreign(settings, name, text.strip(), texts)
            continue
        row, kafka = found
        if settings.has_flag(row):
            settings.warn(f"{name}: has no effect beside the flag --{row.name}")
            continue
        if row.environment != name and variables.get(row.environment):
            continue
        before = taken.setdefault(row.name, name)
        if before != name:
            settings.fault(f"{name}: sets {row.name} again, after {before}; keep one", row.name)
            continue
        place = f"{name}={HIDDEN if row.hides(text.strip()) else cut(text)}"
        if kafka.is_list and "," in text:
            settings.fault(f"{place}: only one value is possible here", row.name)
            continue
        value = with_unit(text.strip(), kafka.unit)
        settings.take(row, value, Origin(f"environment {name}", place), is_text=True)


def _is_of_service(name: str, given: Mapping[str, str]) -> bool:
    match = _OF_SERVICE.fullmatch(name)
    return match is not None and f"{match[1]}_SERVICE_HOST" in given


def _take_foreign(settings: Settings, name: str, text: str, texts: Mapping[str, str]) -> None:
    key = key_of(name)
    settings.foreign[key] = text
    answer = settings.table.foreign
    foreign = answer(key, text, texts) if answer is not None else None
    if foreign is None:
        about = f"Kafka's broker has no key {cut(key)}; it has no effect here"
        settings.warn(f"{name}: {about}{_nearest(key, settings)}")
    elif foreign.is_fault:
        settings.fault(f"{name}: {foreign.text}")
    else:
        settings.warn(f"{name}: {foreign.text}")


def _nearest(key: str, settings: Settings) -> str:
    """Return the variable of Kafka's key that is nearest, to end a warning with."""
    if len(settings.warnings) > NOTICES_MAX:  # is not shown
        return ""
    from difflib import get_close_matches

    near = get_close_matches(key[:100], settings.table.kafka_keys(), 1, 0.6)
    if not near:
        return ""
    name = near[0].replace("_", "__").replace("-", "___").replace(".", "_").upper()
    return f"; did you mean {_PREFIX}{name}?"
