"""DescribeUserScramCredentials: users with credentials, without, and named twice."""

from __future__ import annotations

from tests.compat.differential.cases.k51_alter_user_scram_credentials import upsertion
from tests.compat.differential.script import Script, case

KEY = 50
ALTER = 51


@case(KEY)
def users_by_name(script: Script) -> None:
    ann, bob, absent = script.name("ann"), script.name("bob"), script.name("absent")
    for mechanism in (1, 2):
        users = [upsertion(ann, mechanism, 4_096 + mechanism)]
        script.prepare(ALTER, 0, deletions=[], upsertions=users)
    script.prepare(ALTER, 0, deletions=[], upsertions=[upsertion(bob, 2)])
    script.published()
    script.ask_all(users=None)
    script.ask_all(users=[])
    for names in ([ann], [bob], [ann, ann], [absent], [absent, absent], [""], [ann, ann, absent]):
        script.ask(users=[{"name": name} for name in names])
