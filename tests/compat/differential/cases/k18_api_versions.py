"""ApiVersions: any version is answered; the versions of the APIs that the gateway serves."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 18


@case(KEY)
def the_list(script: Script) -> None:
    script.ask(client_software_name="differential", client_software_version="1.0")


@case(KEY, since=3)
def names_that_kafka_refuses(script: Script) -> None:
    for name, version in (("", "1.0"), ("name", ""), ("white space", "1"), ("-dash", "1-")):
        script.ask(client_software_name=name, client_software_version=version)


@case(KEY, since=3)
def long_names(script: Script) -> None:
    script.ask(client_software_name="a" * 300, client_software_version="1." * 100 + "0")


@case(KEY, until=0)
def a_version_of_the_future(script: Script) -> None:
    body = b"\x02a\x021\0"
    for version in (6, 9, 32_767):
        script.raw(body, flexible=True, version=version, reads=0)


@case(KEY, until=0)
def a_negative_version(script: Script) -> None:
    script.raw(b"", flexible=False, version=-1 & 0xFFFF, reads=0)


@case(KEY)
def twice_on_one_connection(script: Script) -> None:
    for _ in range(2):
        script.ask(client_software_name="differential", client_software_version="1.0")
