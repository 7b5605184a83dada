"""The settings of OAUTHBEARER, one row for each, their faults, and what they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.config import OAuthConfig
from ledger.command_line import units
from ledger.command_line.settings import KafkaKey, Setting, Settings


class Values(Protocol):
    """The values of settings by the names of their rows."""

    def __getitem__(self, name: str, /) -> Any: ...


_OAUTH: Final = OAuthConfig()
_NAME: Final = "sasl-oauthbearer"
_URL: Final = f"{_NAME}-jwks-endpoint-url"
_ALLOWED: Final = f"{_NAME}-allowed-urls"
_NEEDED: Final = (_URL, f"{_NAME}-expected-issuer", f"{_NAME}-expected-audience")
_ALGORITHMS: Final = tuple(
    f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in (256, 384, 512)
)
_SKEW_S_MAX: Final = 600.0
_REFRESH_S_MIN, _REFRESH_S_MAX = 60.0, 7 * 86_400.0


def _place(value: object) -> Path | str:
    """Parse where a JWKS is: `https://...`, or a file, by its path or as `file:`."""
    found = units.text(value)
    if found.startswith("https://"):
        return found
    path = found.removeprefix("file://").removeprefix("file:")
    if "://" in path or not path:
        raise ValueError("must be a file, or a URL that begins with https://")
    return Path(path)


def _https(value: object) -> str:
    found = units.text(value)
    if not found.startswith("https://"):
        raise ValueError("must begin with https://")
    return found


def oauth_rows() -> list[Setting]:
    """Return the rows of OAUTHBEARER."""
    return [*_keys(), *_claims(), *_times()]


def _row(
    name: str, kind: str, parse: Callable[[object], Any], help: str, kafka: str = "", **more: Any
) -> Setting:
    unit = more.pop("unit", "")
    key = (KafkaKey(f"sasl.oauthbearer.{kafka}", unit=unit),) if kafka else ()
    return Setting(name=f"{_NAME}-{name}", kind=kind, parse=parse, help=help, kafka=key, **more)


def _keys() -> list[Setting]:
    return [
        _row(
            *("jwks-endpoint-url", "URL", _place),
            "Keys of the issuer of tokens, as a JSON Web Key Set: a file, or an https URL of "
            f"--{_ALLOWED}.",
            "jwks.endpoint.url",
        ),
        _row(
            *("allowed-urls", "URL", _https),
            f"https URL that --{_URL} may be; repeatable.",
            many=True,
            default=(),
        ),
        _row(
            *("algorithms", "ALGORITHM", units.one_of(*_ALGORITHMS)),
            "Signature algorithm of tokens; repeatable.",
            many=True,
            default=_OAUTH.algorithms,
        ),
    ]


def _claims() -> list[Setting]:
    return [
        _row(
            *("expected-issuer", "TEXT", units.text),
            "Issuer (iss) that tokens must have.",
            "expected.issuer",
        ),
        _row(
            *("expected-audience", "TEXT", units.text),
            "Audience (aud) of which tokens must have one; repeatable.",
            "expected.audience",
            many=True,
            default=(),
        ),
        _row(
            *("expected-scope", "TEXT", units.text),
            "Scope that tokens must have; repeatable.",
            many=True,
            default=(),
        ),
        _row(
            *("scope-claim-name", "NAME", units.text),
            "Claim with the scopes of a token.",
            "scope.claim.name",
            default=_OAUTH.scope_claim,
        ),
        _row(
            *("sub-claim-name", "NAME", units.text),
            "Claim with the name of the user.",
            "sub.claim.name",
            default=_OAUTH.subject_claim,
        ),
    ]


def _times() -> list[Setting]:
    return [
        _row(
            *("clock-skew", "DURATION", units.duration(0.0, _SKEW_S_MAX)),
            "Time by which the clocks of issuer and gateway may differ.",
            "clock.skew.seconds",
            unit="s",
            default=_OAUTH.skew_s,
        ),
        _row(
            *("jwks-endpoint-refresh", "DURATION", units.duration(_REFRESH_S_MIN, _REFRESH_S_MAX)),
            "Time after which the keys of the issuer are read again.",
            "jwks.endpoint.refresh.ms",
            unit="ms",
            default=_OAUTH.refresh_s,
        ),
    ]


def oauth_faults(settings: Settings, *, is_enabled: bool) -> Iterator[str]:
    """Yield the faults of OAUTHBEARER, if it is enabled for a listener."""
    rows = [each.name for each in oauth_rows()]
    if not is_enabled or settings.faulty.intersection(rows):
        return
    missing = [f"--{name}" for name in _NEEDED if not settings[name]]
    if missing:
        yield f"{' and '.join(missing)}: missing; OAUTHBEARER needs them to check tokens"
        return
    place = settings[_URL]
    if isinstance(place, Path):
        yield from _file_faults(settings, oauth_config(settings))
    elif place not in settings[_ALLOWED]:
        yield f"{settings.place(_URL)}: is not allowed; add it to --{_ALLOWED}"


def _file_faults(settings: Settings, config: OAuthConfig) -> Iterator[str]:
    from gateway.security.bearer_keys import BearerKeys, JwksFault
    from ledger.adapters.system.clock import SystemClock

    try:
        BearerKeys(config, SystemClock().now_ms).load()
    except JwksFault as fault:
        yield f"--{_URL} {fault}"


def oauth_config(settings: Values) -> OAuthConfig:
    """Return the rules for tokens that the settings make."""
    return OAuthConfig(
        jwks=settings[_URL] or "",
        issuer=settings[f"{_NAME}-expected-issuer"] or "",
        audiences=settings[f"{_NAME}-expected-audience"],
        scopes=settings[f"{_NAME}-expected-scope"],
        algorithms=settings[f"{_NAME}-algorithms"],
        scope_claim=settings[f"{_NAME}-scope-claim-name"],
        subject_claim=settings[f"{_NAME}-sub-claim-name"],
        skew_s=settings[f"{_NAME}-clock-skew"],
        refresh_s=settings[f"{_NAME}-jwks-endpoint-refresh"],
    )
