"""The process that evaluates the expression of `topic consume --where`, in CEL.

It reads frames from its standard input and answers on its standard output. The first frame is the
expression, every other one a batch of records. CEL runs as native code that cannot be interrupted,
so a batch that needs more than a second of CPU time, or a GiB of memory, ends this process and
nothing else. It ends with its input.
"""

from __future__ import annotations

import json
import marshal
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final, NoReturn, cast

HEAD: Final = struct.Struct(">I")
"""The bytes of the frame behind it."""
NO_MATCH, MATCH, FAILED, WRONG = range(4)
CPU_S_MAX: Final = 1.0
MEMORY_BYTES_MAX: Final = 1024**3

Row = tuple[int, int | None, bytes | None, int, bytes | None, int, Sequence[Any]]
"""A record: offset, timestamp, key and its size, value and its size, headers; -1 bytes is null."""
_Get = Callable[[str, int, Row], Any]


def variables() -> Mapping[str, _Get]:
    """Return the functions that compute the variables of an expression, by name."""
    return {
        "topic": lambda topic, _, row: topic,
        "partition": lambda _, index, row: index,
        "offset": lambda _, __, row: row[0],
        "timestamp": lambda _, __, row: row[1],
        "time": lambda _, __, row: _time(row[1]),
        "key": lambda _, __, row: _key(row[2]),
        "key_size": lambda _, __, row: row[3],
        "value": lambda _, __, row: _value(row[4]),
        "value_size": lambda _, __, row: row[5],
        "headers": lambda _, __, row: {name: _text(data) for name, data in row[6]},
    }


def _time(timestamp: int | None) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):  # behind the year 9999
        return None if timestamp is None else datetime.fromtimestamp(timestamp / 1000, UTC)
    return None


def _text(data: bytes | None) -> str | bytes | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return data


def _key(data: bytes | None) -> Any:
    """Return an object or a list of JSON; any other key is text, also if it has only digits."""
    found: Any = _value(data)
    is_nested = isinstance(found, dict | list)
    return cast("Any", found) if is_nested else _text(data)


def _value(data: bytes | None) -> Any:
    text = _text(data)
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def evaluate(
    run: Callable[[dict[str, Any]], Any],
    names: Mapping[str, _Get],
    topic: str,
    index: int,
    rows: Sequence[Row],
) -> tuple[bytes, str]:
    """Return the verdicts of the records, and the reason of the first FAILED or of WRONG.

    WRONG is the last verdict, also if there are more records: the expression itself is wrong.
    """
    verdicts = bytearray()
    reason = ""
    for row in rows:
        try:
            found = run({name: get(topic, index, row) for name, get in names.items()})
        except RuntimeError as error:  # an unknown function
            verdicts.append(WRONG)
            return bytes(verdicts), _first_sentence(str(error))
        except Exception as error:  # noqa: BLE001 - whatever the native code raises
            verdicts.append(FAILED)
            reason = reason or _reason(error)
            continue
        if not isinstance(found, bool):
            verdicts.append(WRONG)
            return bytes(verdicts), f"the result is {found!r:.80}, not true or false"
        verdicts.append(MATCH if found else NO_MATCH)
    return bytes(verdicts), reason


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no such key: {error}"
    return _first_sentence(str(error))


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0]


def receive() -> Any:
    """Return the next frame, or None at the end of the input."""
    head = sys.stdin.buffer.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    return marshal.loads(sys.stdin.buffer.read(HEAD.unpack(head)[0]))


def send(answer: Any) -> None:
    """Write a frame."""
    data = marshal.dumps(answer)
    sys.stdout.buffer.write(HEAD.pack(len(data)) + data)
    sys.stdout.buffer.flush()


def _compiler() -> Any:
    """Return the native module of the package `cel`.

    The package itself also imports a command line of its own, which takes five times as long.
    """
    package = find_spec("cel")
    for place in (package and package.submodule_search_locations) or ():
        for file in (Path(place) / f"cel{suffix}" for suffix in EXTENSION_SUFFIXES):
            spec = spec_from_file_location("cel", file)
            if file.exists() and spec is not None and spec.loader is not None:
                module = module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    return import_module("cel")


def main() -> None:
    """Answer until the input ends. The first answer is an error or None, and the names in use."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    compiler = _compiler()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
    try:
        program: Any = compiler.compile(receive())
        used: list[str] = program.variables()
    except Exception as error:  # noqa: BLE001 - whatever the native code raises
        send((str(error), []))
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    send((None, used))
    names = {name: get for name, get in variables().items() if name in used}
    while (request := receive()) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
        answer = evaluate(program.execute, names, *request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(answer)


if __name__ == "__main__":
    main()
