"""How a job reaches the Kafka port: the servers, and the client keys of TLS and SASL.

The driver and our own tasks connect by `ClientSettings`, and Spark's Kafka source by its options
`kafka.*`. Both get the same keys. Keys, certificates and the password are read once, on the driver,
so that executors need none of the files.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gateway.admin.client_settings import (
    CLIENT_KEYS,
    PLAINTEXT,
    PROTOCOL,
    ClientSettings,
    UnsupportedSecurity,
)
from gateway.core.sasl_session import OAUTHBEARER
from gateway.interrupt import run_interruptibly
from gateway.pipelines.shared.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.config import TlsConfig
    from gateway.security.link_security import LinkSecurity, Login

KafkaServers = ClientSettings | str
"""The bootstrap servers, with the keys by which they are reached; servers alone: plain text."""

UNSUPPORTED: Final = "UNSUPPORTED_SECURITY"
_PREFIX: Final = "kafka."
_SASL: Final = "sasl."
_USER_KEYS: Final = ("sasl.username", "sasl.password")
_OPTIONS_REGEX: Final = "spark.sql.redaction.options.regex"
_MODULES: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
# The keys in place of which `portable_keys` returns what they name.
_NAMING: Final = re.compile(
    r"sasl\.(username|password|jaas\.config)|ssl\.(ca|key|certificate)\.location|"
    r"ssl\.(keystore|truststore)\..*|ssl\.key\.password|sasl\.login\.callback\.handler\.class|"
    r"sasl\.oauthbearer\.(client\.credentials\..*|scope|token\.endpoint\.url|jwt\.retriever\.class)"
)
_KEY: Final = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----\n?", re.DOTALL)
_CERTIFICATE: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL
)


def settings_of(servers: KafkaServers) -> ClientSettings:
    """Return the settings of connections to these servers."""
    return ClientSettings(servers) if isinstance(servers, str) else servers


def source_options(servers: KafkaServers) -> dict[str, str]:
    """Return the options with which Spark's Kafka source reaches these servers."""
    settings = settings_of(servers)
    keys = {f"{_PREFIX}{key}": value for key, value in settings.keys.items()}
    return {f"{_PREFIX}bootstrap.servers": settings.bootstrap, **keys}


def job_servers(settings: ClientSettings, options: Mapping[str, str]) -> ClientSettings:
    """Return the settings with options such as `kafka.security.protocol`, for every process.

    Raises JobError if an option is no key of TLS or SASL, or if the keys cannot be used.
    """
    keys = dict(settings.keys)
    for option, value in options.items():
        key = option.removeprefix(_PREFIX)
        if not option.startswith(_PREFIX) or key not in CLIENT_KEYS:
            raise JobError(
                f"option {option!r}: must be a key of TLS or SASL of Kafka's client, such as "
                f"{_PREFIX}{PROTOCOL}",
                "USAGE",
            )
        keys[key] = value
    return settings._replace(keys=portable_keys(keys))


def portable_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """Return keys with the same meaning that name no file, for Kafka's own client and ours.

    Empty if they ask for plain text. Raises JobError.
    """
    if keys.get(PROTOCOL, "" if keys else PLAINTEXT).upper() == PLAINTEXT:
        return {}
    security = link_security(ClientSettings("", keys))
    assert security is not None
    found = {key: value for key, value in keys.items() if not _NAMING.fullmatch(key)}
    if security.login is not None and security.login.token is not None:
        from gateway.pipelines.shared.token_options import token_keys

        found |= token_keys(security.login.token)
    elif security.login is not None:
        found["sasl.jaas.config"] = _jaas(security.login)
    if security.context is not None:
        found |= _pem(keys)
    return found


def with_portable_login(keys: Mapping[str, str]) -> dict[str, str]:
    """Return properties of Kafka's client in which the login is in a form that it reads.

    The login is one in the form of our commands: a user and a password, or a token of Kafka 4's
    keys or without a class. Other logins, and all keys of TLS, stay as they are. Raises JobError.
    """
    login = {key: value for key, value in keys.items() if key.startswith(_SASL)}
    if not keys.get(PROTOCOL, "").upper().startswith("SASL_") or not _is_ours(login):
        return dict(keys)
    others = {key: value for key, value in keys.items() if key not in login}
    return {**portable_keys({**login, PROTOCOL: "SASL_SSL"}), **others}


def expect_token(keys: Mapping[str, str]) -> None:
    """Get the token that these properties of Kafka's client name, if they name one of ours.

    Raises AdminError and Unreachable with the fault. Kafka's client only reports that there is one.
    """
    login = {key: value for key, value in keys.items() if key.startswith(_SASL)}
    try:
        security = link_security(ClientSettings("", {**login, PROTOCOL: "SASL_SSL"}))
    except JobError:  # a login that only Kafka's client supports
        return
    if security is not None and security.login is not None and security.login.token is not None:
        from gateway.security.login_token import login_token

        run_interruptibly(login_token(security.login.token))


def _is_ours(login: Mapping[str, str]) -> bool:
    """Return whether Kafka's client of Spark would read another login in these keys, or none."""
    mechanism = login.get("sasl.mechanism")
    if mechanism != OAUTHBEARER:
        return mechanism in _MODULES and any(key in login for key in _USER_KEYS)
    from gateway.security.token_keys import HANDLER, HANDLERS
    from gateway.security.token_sources import CLIENT_ID, CLIENT_SECRET, SCOPE, URL

    handler = login.get(HANDLER)
    own = any(key in login for key in (CLIENT_ID, CLIENT_SECRET, SCOPE))
    return URL in login and (handler is None or (handler in HANDLERS and own))


def link_security(settings: ClientSettings) -> LinkSecurity | None:
    """Return how our own connections are secured, None for plain text. Raises JobError."""
    from gateway.security.link_security import LinkSecurity

    try:
        security = settings.security()
    except UnsupportedSecurity as fault:
        raise JobError(str(fault), UNSUPPORTED) from None
    assert security is None or isinstance(security, LinkSecurity)
    return security


def _jaas(login: Login) -> str:
    from gateway.pipelines.shared.token_options import literal, quoted

    user = quoted(login.user, "a user")
    password = quoted(literal(login.password, "a password"), "a password")
    name = f"org.apache.kafka.common.security.{_MODULES[login.mechanism]}"
    return f"{name} required username={user} password={password};"


def _pem(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the certificates and the private key that the keys name. Raises JobError."""
    from gateway.security.client_keys import ClientFault, tls_of
    from ledger.command_line.secret_values import SecretFault

    try:
        return _contents(tls_of(keys))
    except (ClientFault, SecretFault) as fault:
        raise JobError(f"{fault}; nothing was sent", UNSUPPORTED) from None


def _contents(tls: TlsConfig) -> dict[str, str]:
    from ledger.command_line.secret_values import is_reference, read_private, read_public, resolve

    def text(written: str) -> str:
        return resolve(written).decode() if is_reference(written) else written

    found: dict[str, str] = {}
    trusted = text(tls.trusted) if tls.truststore is None else read_public(tls.truststore).decode()
    if trusted:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = "".join(_CERTIFICATE.findall(trusted))
    own = text(tls.key) + "\n" + text(tls.certificates)
    if tls.keystore is not None:
        own = read_private(tls.keystore).decode()
    key = _KEY.search(own)
    if key is not None:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.key"] = _pkcs8(key[0], text(tls.key_password).strip())
        found["ssl.keystore.certificate.chain"] = "".join(_CERTIFICATE.findall(own))
    return found


def _pkcs8(pem: str, password: str) -> str:
    """Return a private key in the form that Kafka's client reads: PKCS#8 without a passphrase.

    Raises JobError.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    try:
        key = form.load_pem_private_key(pem.encode(), password.encode() or None)
    except TypeError:  # a passphrase, and a key without one; or the reverse, which raises again
        key = form.load_pem_private_key(pem.encode(), None)
    except (ValueError, UnsupportedAlgorithm):
        raise JobError("the private key cannot be read; nothing was sent", UNSUPPORTED) from None
    plain = form.NoEncryption()
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, plain).decode()


@contextmanager
def secrets_hidden(spark: SparkSession) -> Generator[None]:
    """Let Spark hide the secrets of `source_options` in its UI and its event files.

    A session of the user may lack the settings that a session of a job begins with.
    """
    from gateway.pipelines.shared.session import REDACTED, session_settings

    own, ours = str(spark.conf.get(_OPTIONS_REGEX, "")), REDACTED[_OPTIONS_REGEX]
    hidden = f"{ours}|(?:{own})" if own and own != ours else ours
    with session_settings(spark, {_OPTIONS_REGEX: hidden}):
        yield
