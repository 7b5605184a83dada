"""DescribeDelegationToken: connections that are not authenticated."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 41


@case(KEY)
def any_owners(script: Script) -> None:
    for owners in (None, [], [{"principal_type": "User", "principal_name": "ann"}]):
        script.ask(owners=owners)
