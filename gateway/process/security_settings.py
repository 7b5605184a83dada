"""The settings of TLS and SASL on the Kafka port, one row for each, and what they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway.config import SaslConfig, TlsConfig
from gateway.process.oauth_settings import Values, oauth_config, oauth_rows
from ledger.command_line import units
from ledger.command_line.settings import KafkaKey, Setting

_TLS: Final = TlsConfig()
_SASL: Final = SaslConfig()
_SESSION_S_MAX: Final = 365 * 86_400.0
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")  # those of gateways as clients
_SERVED: Final = (*_MECHANISMS, "OAUTHBEARER")
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
# Kafka's names of the suites of TLS 1.2 that are not broken, and OpenSSL's.
_SUITES: Final = {
    f"TLS_ECDHE_{kind}_WITH_{kafka}": f"ECDHE-{kind}-{ours}"
    for kind in ("ECDSA", "RSA")
    for kafka, ours in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
_SUITES_1_3: Final = ("TLS_AES_", "TLS_CHACHA20_")


def _secret(value: object) -> str:
    """Parse what a secret is read from. Raises ValueError, without the value."""
    from ledger.command_line.secret_values import parse_reference

    return parse_reference(value)


def _pem(value: object) -> str:
    """Parse certificates: PEM text, or what it is read from."""
    from ledger.command_line.secret_values import is_reference

    found = units.text(value)
    if not is_reference(found) and "-----BEGIN CERTIFICATE-----" not in found:
        raise ValueError("must be file:PATH, env:NAME or certificates in PEM")
    return found


def _suite(value: object) -> str:
    found = units.text(value).upper()
    if found.startswith(_SUITES_1_3):
        raise ValueError("belongs to TLS 1.3, whose suites are all offered; name those of TLS 1.2")
    found = _SUITES.get(found, found)
    if found not in _SUITES.values():
        raise ValueError(f"must be {units.listed(list(_SUITES))}")
    return found


def _rules(value: object) -> str:
    from gateway.core.principal_rules import PrincipalRules

    found = units.text(value)
    PrincipalRules(found)
    return found


def security_rows() -> list[Setting]:
    """Return the rows of TLS and SASL."""
    rows = [*_own_keys(), *_trusted(), *_protocols(), *_sasl(), *oauth_rows()]
    return [*rows, *_inter_broker(), *_limits()]


def _row(
    name: str, kind: str, parse: Callable[[object], Any], help: str, kafka: str = "", **more: Any
) -> Setting:
    keys = (KafkaKey(kafka, unit=more.pop("unit", "")),) if kafka else ()
    return Setting(name=name, kind=kind, parse=parse, help=help, kafka=keys, **more)


def _own_keys() -> list[Setting]:
    return [
        _row(
            *("ssl-keystore-location", "FILE", units.path),
            "PEM file with the private key and the certificates of this gateway; only its owner "
            "may read it.",
            "ssl.keystore.location",
        ),
        _row(
            *("ssl-keystore-certificate-chain", "PEM", _pem),
            "Certificates in place of --ssl-keystore-location: file:PATH, env:NAME or PEM text.",
            "ssl.keystore.certificate.chain",
        ),
        _row(
            *("ssl-keystore-key", "SECRET", _secret),
            "Private key of --ssl-keystore-certificate-chain: file:PATH or env:NAME.",
            "ssl.keystore.key",
            reference=True,
        ),
        _row(
            *("ssl-key-password", "SECRET", _secret),
            "Passphrase of the private key: file:PATH or env:NAME.",
            "ssl.key.password",
            reference=True,
        ),
    ]


def _trusted() -> list[Setting]:
    return [
        _row(
            *("ssl-truststore-location", "FILE", units.path),
            "PEM file with the CA certificates that sign those of clients and other gateways.",
            "ssl.truststore.location",
        ),
        _row(
            *("ssl-truststore-certificates", "PEM", _pem),
            "CA certificates in place of --ssl-truststore-location: file:PATH, env:NAME or PEM "
            "text.",
            "ssl.truststore.certificates",
        ),
        _row(
            *("ssl-crl-location", "FILE", units.path),
            "PEM file with lists of revoked certificates, one of each CA. Without it none is "
            "checked.",
        ),
        _row(
            *("ssl-client-auth", "MODE", units.one_of_any_case("none", "requested", "required")),
            "Certificates of clients: required, requested (and verified if shown), or none.",
            "ssl.client.auth",
            default=_TLS.client_auth,
        ),
        _row(
            *("ssl-principal-mapping-rules", "RULES", _rules),
            "RULE:pattern/replacement/[LU] and DEFAULT, separated by commas: from the subject of a "
            "certificate to the name of a user.",
            "ssl.principal.mapping.rules",
            default=_TLS.principal_rules,
        ),
    ]


def _protocols() -> list[Setting]:
    return [
        _row(
            *("ssl-enabled-protocols", "VERSION", units.one_of(*_VERSIONS)),
            "Version of TLS; repeatable.",
            "ssl.enabled.protocols",
            many=True,
            default=_TLS.protocols,
        ),
        _row(
            *("ssl-cipher-suites", "SUITE", _suite),
            "Cipher suite of TLS 1.2; repeatable. Those of TLS 1.3 are all offered.",
            "ssl.cipher.suites",
            many=True,
            default=(),
            shown="OpenSSL's choice",
        ),
    ]


def _sasl() -> list[Setting]:
    return [
        _row(
            *("sasl-enabled-mechanisms", "MECHANISM", units.one_of(*_SERVED)),
            "Mechanism of listeners with SASL; repeatable. PLAIN and OAUTHBEARER are offered only "
            "inside TLS.",
            "sasl.enabled.mechanisms",
            many=True,
            default=_SASL.mechanisms,
        ),
        _row(
            *("connections-max-reauth", "DURATION", units.duration(0.0, _SESSION_S_MAX)),
            "Time after which a client of SASL must authenticate again; 0s: never.",
            "connections.max.reauth.ms",
            unit="ms",
            default=_SASL.session_s,
        ),
    ]


def _inter_broker() -> list[Setting]:
    return [
        _row(
            *("inter-broker-user", "USER", units.text),
            "User as which gateways authenticate at each other, and the page at its own, if their "
            "listener has SASL.",
        ),
        _row(
            *("inter-broker-password", "SECRET", _secret),
            "Password of --inter-broker-user: file:PATH or env:NAME.",
            reference=True,
        ),
        _row(
            *("inter-broker-mechanism", "MECHANISM", units.one_of(*_MECHANISMS)),
            "Mechanism by which they do.",
            "sasl.mechanism.inter.broker.protocol",
            default=_SASL.mechanism,
        ),
    ]


def _limits() -> list[Setting]:
    return [
        _row(
            *("max-connection-creation-rate", "COUNT", units.whole(0, units.INT32_MAX)),
            "New connections a second of all listeners together; 0: any number.",
            "max.connection.creation.rate",
            default=0,
        ),
    ]


def tls_config(settings: Values) -> TlsConfig:
    """Return the TLS that the settings make."""
    return TlsConfig(
        keystore=settings["ssl-keystore-location"],
        certificates=settings["ssl-keystore-certificate-chain"] or "",
        key=settings["ssl-keystore-key"] or "",
        key_password=settings["ssl-key-password"] or "",
        truststore=settings["ssl-truststore-location"],
        trusted=settings["ssl-truststore-certificates"] or "",
        revoked=settings["ssl-crl-location"],
        client_auth=settings["ssl-client-auth"],
        protocols=settings["ssl-enabled-protocols"],
        ciphers=settings["ssl-cipher-suites"],
        principal_rules=settings["ssl-principal-mapping-rules"],
    )


def sasl_config(settings: Values) -> SaslConfig:
    """Return the SASL that the settings make."""
    return SaslConfig(
        mechanisms=tuple(dict.fromkeys(settings["sasl-enabled-mechanisms"])),
        session_s=settings["connections-max-reauth"],
        user=settings["inter-broker-user"] or "",
        password=settings["inter-broker-password"] or "",
        mechanism=settings["inter-broker-mechanism"],
        oauth=oauth_config(settings),
    )
