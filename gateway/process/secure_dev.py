"""`gateway dev --secure`: TLS, a user and ACLs, from files that the first start makes.

    DATA/secure/
        ca.pem  ca.key               the authority: clients trust ca.pem
        server.pem  server.json      key and certificate of the gateway; its names, and its end
        admin.password               password of the user `admin`, in one line
        page.passwords               the same user for the web page
        client.properties            for Kafka's own tools and for our commands
        librdkafka.properties        for kcat and other clients of librdkafka

Only their owner may read them, but for ca.pem. They appear together, by one renaming, so that a
start that is cut short leaves none. Later starts use them. Each start gives `admin` the password of
admin.password, and signs another certificate if a name is missing in it or its end is near.
Imported only with `--secure`.
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import json
import os
import secrets
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from gateway.config import STANDARD, GatewayConfig
from gateway.core.sasl_session import PLAIN
from gateway.core.scram_credentials import Mechanism, Upsertion, derived
from gateway.core.scram_decoy import NEW_ITERATIONS, salt_of
from gateway.core.scram_exchange import salted_password
from gateway.process.embedded_identity import METADATA
from gateway.process.run import ConfigFault
from gateway.process.server_settings import PROTOCOLS, SECURE
from gateway.settings.scram_users import ScramUsers
from ledger.command_line.secret_files import others_read
from ledger.command_line.secret_values import SecretFault, read_private, read_public, resolve_line
from ledger.command_line.settings import Settings
from ledger.command_line.units import is_loopback
from ledger.ports.metadata import MetadataStore

ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
DIRECTORY: Final = "secure"
_PASSWORD_BYTES: Final = 24
_SALT_BYTES: Final = 16
_NEAR: Final = datetime.timedelta(days=30)  # before its end a certificate is replaced
_ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
_ANYWHERE: Final = ("0.0.0.0", "::")
_KEPT: Final = ("ca.pem", "ca.key", "server.pem", "admin.password", "page.passwords")
# Settings whose values this start makes.
_OURS: Final = (
    *("listener-security-protocol-map", "ssl-keystore-location", "ssl-keystore-certificate-chain"),
    *("ssl-keystore-key", "ssl-key-password", "ssl-truststore-location"),
    *("ssl-truststore-certificates", "inter-broker-user", "inter-broker-password"),
    *("inter-broker-mechanism", "http-cert", "http-key", "http-password-file"),
)


def faults_of_secure(settings: Settings) -> Iterator[str]:
    """Yield the faults of settings that contradict `--secure`."""
    for name in _OURS:
        if not settings.is_default(name):
            place = settings.place(name)
            yield f"{place}: cannot be used with --secure, which makes it; leave one of them out"
    if not settings.is_default("ledger-port") and settings["ledger-port"] is not None:
        place = settings.place("ledger-port")
        yield f"{place}: this port has no login, so --secure leaves it closed; remove it"
    if not settings.is_default("authorizer") and settings["authorizer"] != STANDARD:
        yield f"{settings.place('authorizer')}: --secure needs {STANDARD}; remove it"
    if MECHANISM not in settings["sasl-enabled-mechanisms"]:
        place = settings.place("sasl-enabled-mechanisms")
        yield f"{place}: --secure logs in by {MECHANISM}; add it"
    for each in settings["listener"]:
        if each.name in PROTOCOLS and each.name != SECURE:
            place = settings.place_of("listener", str(each))
            yield f"{place}: --secure serves {SECURE} alone; give the listener another name"


def secured(config: GatewayConfig, *, adds_plain: bool = True) -> GatewayConfig:
    """Make the files that are missing, and return the configuration that uses them.

    With `adds_plain` PLAIN is offered too, as all listeners have TLS: librdkafka before 2.6.1
    sends a wrong nonce in SCRAM, which Kafka 4 and this gateway refuse. Raises ConfigFault.
    """
    if adds_plain:
        mechanisms = tuple(dict.fromkeys((*config.sasl.mechanisms, PLAIN)))
        config = replace(config, sasl=replace(config.sasl, mechanisms=mechanisms))
    place = (config.data / DIRECTORY).absolute()
    now = datetime.datetime.now(datetime.UTC)
    try:
        _make_files(place, config, now)
    except (SecretFault, OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise ConfigFault([f"--secure: {place}: {reason}"]) from None
    server = place / "server.pem"
    page = replace(config.http, password_file=place / "page.passwords")
    metrics_host = "localhost" if config.metrics_port is None else config.host
    if not (is_loopback(page.host) and is_loopback(metrics_host)):
        page = replace(page, certificate=server, private_key=server)
    rules = config.authorization
    return replace(
        config,
        secure=place,
        ledger_port=None,
        tls=replace(config.tls, keystore=server, truststore=place / "ca.pem"),
        sasl=replace(
            config.sasl,
            user=ADMIN,
            password=f"file:{place / 'admin.password'}",
            mechanism=MECHANISM,
        ),
        authorization=replace(
            rules, authorizer=STANDARD, super_users=(f"User:{ADMIN}", *rules.super_users)
        ),
        http=page,
    )


async def write_admin(config: GatewayConfig, metadata: MetadataStore) -> None:
    """Give `admin` the password of its file, unless it has it. Raises ConfigFault, LedgerError."""
    try:
        password = resolve_line(config.sasl.password)
    except SecretFault as fault:
        raise ConfigFault([f"--secure: {fault}"]) from None
    users = ScramUsers(metadata)
    await users.load()
    try:
        known = users.credential(ADMIN, Mechanism.SHA_512)
        if known is not None:
            same = _upsertion(Mechanism.SHA_512, password, known.salt, known.iterations)
            if hmac.compare_digest(derived(same).stored_key, known.stored_key):
                return
        for mechanism in Mechanism:
            salt = salt_of(secrets.token_bytes(_SALT_BYTES + 1))
            await users.alter(_upsertion(mechanism, password, salt, NEW_ITERATIONS))
    finally:
        await users.close()


def _upsertion(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> Upsertion:
    salted = salted_password(mechanism, password, salt, iterations)
    return Upsertion(ADMIN, mechanism, iterations, salt, salted)


def hints(place: Path, host: str, port: int) -> list[str]:
    """Return the lines that show how clients connect. They name files, and no secret."""
    host = "localhost" if host in _ANYWHERE else host
    server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    java = f"--bootstrap-server {server} --command-config {_quoted(place / 'client.properties')}"
    ours = f"-b {server} --command-config {_quoted(place / 'client.properties')}"
    rdkafka = f"-b {server} -F {_quoted(place / 'librdkafka.properties')}"
    return [
        f"secure: {SECURE}; user {ADMIN}, also for the page; password: {place / 'admin.password'}",
        f"java: kafka-topics.sh {java} --list",
        f"librdkafka: kcat {rdkafka} -L",
        f"aiokafka: AIOKafkaProducer({_of_aiokafka(place, server)})",
        f"gateway: gateway topic list {ours}",
    ]


def _of_aiokafka(place: Path, server: str) -> str:
    authority, password = str(place / "ca.pem"), str(place / "admin.password")
    return ", ".join(
        (
            f"bootstrap_servers={server!r}",
            f"security_protocol={SECURE!r}",
            f"ssl_context=ssl.create_default_context(cafile={authority!r})",
            f"sasl_mechanism={MECHANISM!r}",
            f"sasl_plain_username={ADMIN!r}",
            f"sasl_plain_password=open({password!r}).read().strip()",
        )
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _make_files(place: Path, config: GatewayConfig, now: datetime.datetime) -> None:
    names = _names_of(config)
    config.data.mkdir(parents=True, exist_ok=True)
    _close_to_others(config.data)
    if not place.exists():
        _make_all(place, config, now)
    missing = next((each for each in _KEPT if not (place / each).is_file()), None)
    if missing is not None:
        raise SecretFault(
            f"has no {missing}; restore it, or remove the directory and its files are made again"
        )
    if not _is_good(place / "server.json", names, now):
        _sign_again(place, names, now)
    password = resolve_line(f"file:{place / 'admin.password'}")
    if (place / "page.passwords").stat().st_mtime_ns < (
        place / "admin.password"
    ).stat().st_mtime_ns:  # the password was changed by hand
        _replace(place / "page.passwords", _page_line(password))
    for name, content in _of_clients(place, password, config).items():
        if not _has(place / name, content):
            _replace(place / name, content)


def _close_to_others(data: Path) -> None:
    """Let only the owner into the directory: it has the keys of users, and every record.

    A directory of another user stays as it is; the metadata in it is closed all the same.
    """
    if others_read(data.stat().st_mode):
        with contextlib.suppress(PermissionError):
            data.chmod(0o700)
    for each in data.glob(f"{METADATA}*"):
        with contextlib.suppress(FileNotFoundError):
            if others_read(each.stat().st_mode):
                each.chmod(0o600)


def _make_all(place: Path, config: GatewayConfig, now: datetime.datetime) -> None:
    """Make the files of a first start beside their place, and rename their directory there."""
    from gateway.process.dev_authority import issue_server, new_authority

    names = _names_of(config)
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    authority = new_authority(now)
    made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))  # mode 0700
    try:
        _write(made / "ca.pem", authority.certificate_pem, mode=0o644)
        _write(made / "ca.key", authority.key_pem)
        _write(made / "server.pem", issue_server(authority, names, now))
        _write(made / "server.json", _note(names, now))
        _write(made / "admin.password", f"{password}\n".encode())
        _write(made / "page.passwords", _page_line(password))
        for name, content in _of_clients(place, password, config).items():
            _write(made / name, content)
        _sync(made)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():  # otherwise another start made them meanwhile
                raise
        _sync(place.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _names_of(config: GatewayConfig) -> list[str]:
    """Return the names and addresses by which clients may reach this gateway."""
    hosts = [config.http.host, *config.http.names]
    for each in config.all_listeners:
        hosts += [each.host, each.advertised_host or ""]
    if any(each in _ANYWHERE for each in hosts):
        hosts.append(socket.gethostname())
    found = [each.strip("[]") for each in hosts if each and each not in _ANYWHERE]
    return sorted({*_ALWAYS, *found})


def _is_good(note: Path, names: Sequence[str], now: datetime.datetime) -> bool:
    """Return whether the certificate has these names, and does not end soon."""
    try:
        found: Any = json.loads(read_public(note))
        known, end = found["names"], datetime.datetime.fromisoformat(found["end"])
        return (
            isinstance(known, list)
            and set(names) <= set(cast("list[str]", known))
            and (now + _NEAR < end)
        )
    except (SecretFault, ValueError, TypeError, KeyError):
        return False


def _note(names: Sequence[str], now: datetime.datetime) -> bytes:
    from gateway.process.dev_authority import SERVER_DAYS

    end = now + datetime.timedelta(days=SERVER_DAYS)
    return json.dumps({"names": list(names), "end": end.isoformat()}).encode()


def _sign_again(place: Path, names: Sequence[str], now: datetime.datetime) -> None:
    from gateway.process.dev_authority import issue_server, read_authority

    key = read_private(place / "ca.key")
    try:
        authority = read_authority(read_public(place / "ca.pem"), key)
    except (ValueError, TypeError):
        raise SecretFault("ca.pem and ca.key cannot be used; restore them") from None
    _replace(place / "server.pem", issue_server(authority, names, now))
    _replace(place / "server.json", _note(names, now))


def _page_line(password: str) -> bytes:
    from gateway.http.password_file import line_of

    return f"{line_of(ADMIN, password)}\n".encode()


def _of_clients(place: Path, password: str, config: GatewayConfig) -> dict[str, bytes]:
    """Return the files of clients by name."""
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    login = f'{jaas} username="{ADMIN}" password="{_in_jaas(password)}";'
    java = {
        "security.protocol": SECURE,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place / "ca.pem"),
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": login,
    }
    librdkafka = {
        "security.protocol": SECURE,
        "ssl.ca.location": str(place / "ca.pem"),
        "sasl.mechanism": PLAIN if PLAIN in config.sasl.mechanisms else MECHANISM,
        "sasl.username": ADMIN,
        "sasl.password": password,
    }
    lines = [f"{key}={_in_properties(value)}" for key, value in java.items()]
    plain = [f"{key}={value}" for key, value in librdkafka.items()]
    return {
        "client.properties": "".join(f"{line}\n" for line in lines).encode(),
        "librdkafka.properties": "".join(f"{line}\n" for line in plain).encode(),
    }


def _in_jaas(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _in_properties(text: str) -> str:
    """Return text as Java's properties have it: beyond ASCII by escapes."""
    escaped = text.replace("\\", "\\\\")
    if escaped.isascii():
        return escaped
    encoded = escaped.encode("utf-16-be")
    units = [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


def _has(file: Path, content: bytes) -> bool:
    try:
        return read_private(file) == content
    except SecretFault:
        return False


def _write(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a new file, so that it stays after a power cut."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(number, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(number)


def _replace(file: Path, content: bytes) -> None:
    """Replace a file at once."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    _write(new, content)
    new.replace(file)
    _sync(file.parent)


def _sync(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
