"""Goal: ACLs decide as Kafka's StandardAuthorizer does, quickly however many there are.

Method: single rules by hand; Hypothesis compares decisions with a slow twin that scans all ACLs as
Kafka's documents describe it. Mistakes are planted into the rules, and the twin must find each.
"""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access import CLUSTER, Operation, Resource, ResourceType, is_allowed
from gateway.core import acl_rules
from gateway.core.acl_rules import AclRules, hosts_of
from gateway.core.acls import Acl, Pattern, PatternType, Permission

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
HERE = "10.0.0.1"


def acl(
    name="orders",
    operation=READ,
    permission=ALLOW,
    *,
    principal="User:ann",
    host="*",
    pattern=LITERAL,
    kind=TOPIC,
):
    return Acl(Pattern(kind, name, pattern), principal, host, operation, permission)


def may(rules, operation=READ, name="orders", *, principal="User:ann", host=HERE, kind=TOPIC):
    return rules.allows(principal, host, operation, Resource(kind, name))


def test_nothing_is_allowed_without_an_acl():
    assert not may(AclRules())


def test_everything_is_allowed_without_an_authorizer():
    assert is_allowed(None, "User:ann", HERE, READ, CLUSTER)
    assert not is_allowed(AclRules(), "User:ann", HERE, READ, CLUSTER)


def test_a_deny_wins_over_an_allow_whichever_is_more_specific():
    assert not may(AclRules([acl(), acl("*", ALL, DENY)]))
    assert not may(AclRules([acl("*"), acl("orders", READ, DENY)]))
    assert not may(AclRules([acl(), acl("ord", READ, DENY, pattern=PREFIXED)]))


def test_a_prefix_matches_names_that_begin_with_it():
    rules = AclRules([acl("ord", pattern=PREFIXED)])
    assert [may(rules, name=name) for name in ("ord", "orders", "or", "xord")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_literal_name_matches_no_longer_name():
    assert not may(AclRules([acl("ord")]))


def test_a_prefix_of_a_star_is_no_wildcard():
    rules = AclRules([acl("*", pattern=PREFIXED)])
    assert not may(rules)
    assert may(rules, name="*orders")


def test_principals_match_by_their_exact_name_or_all_of_them():
    assert not may(AclRules([acl(principal="User:annabel")]))
    assert not may(AclRules([acl(principal="User:ANN")]))
    assert not may(AclRules([acl(principal="User:a*")]))
    assert may(AclRules([acl(principal="User:*")]))


def test_hosts_match_by_address_or_all_of_them():
    assert may(AclRules([acl(host=HERE)]))
    assert not may(AclRules([acl(host="10.0.0.2")]))
    assert not may(AclRules([acl(host="10.0.0.*")]))


@pytest.mark.parametrize("written", ["::1", "0:0:0:0:0:0:0:1"])
def test_an_address_of_ipv6_matches_in_the_form_of_java_too(written):
    assert may(AclRules([acl(host=written)]), host="::1")


def test_a_mapped_address_is_that_of_ipv4():
    assert hosts_of("::ffff:10.0.0.1") == (HERE, "*")
    assert hosts_of("fe80::1%eth0")[1] == "fe80:0:0:0:0:0:0:1%eth0"
    assert hosts_of("a:b") == ("a:b", "*")


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE", "ALTER"])
def test_an_allow_implies_describe_and_a_deny_does_not(operation):
    assert may(AclRules([acl(operation=Operation(operation))]), DESCRIBE)
    denied = AclRules([acl(operation=DESCRIBE), acl("orders", Operation(operation), DENY)])
    assert may(denied, DESCRIBE)


def test_altering_configs_implies_describing_them():
    rules = AclRules([acl(operation=Operation.ALTER_CONFIGS)])
    assert may(rules, Operation.DESCRIBE_CONFIGS)
    assert not may(rules, DESCRIBE)


def test_describing_implies_nothing():
    rules = AclRules([acl(operation=DESCRIBE)])
    assert not any(may(rules, each) for each in Operation if each is not DESCRIBE)


def test_all_operations_stand_for_each():
    rules = AclRules([acl(operation=ALL)])
    assert all(may(rules, each) for each in Operation)


def test_a_super_user_may_do_everything_even_what_is_denied():
    rules = AclRules([acl("*", ALL, DENY, principal="User:*")], super_users=["User:root"])
    assert may(rules, principal="User:root")
    assert not may(rules)


def test_everyone_may_use_resources_without_acls_if_it_is_set():
    rules = AclRules([acl("orders", WRITE, principal="User:bob")], allow_everyone=True)
    assert may(rules, name="others")
    assert not may(rules)  # the ACL of another principal and operation is one of the resource


def test_an_acl_concerns_one_type_of_resource():
    rules = AclRules([acl(kind=GROUP)])
    assert not may(rules)
    assert may(rules, kind=GROUP)


def test_the_decision_names_the_rule():
    deny = acl("ord", ALL, DENY, pattern=PREFIXED, principal="User:bob")
    allow = acl()
    rules = AclRules([deny, allow], super_users=["User:root"])
    resource = Resource(TOPIC, "orders")
    assert rules.decide("User:ann", HERE, DESCRIBE, resource) == (True, "MatchingAcl", allow)
    assert rules.decide("User:bob", HERE, READ, resource) == (False, "MatchingAcl", deny)
    assert rules.decide("User:eve", HERE, READ, resource).rule == "DefaultDeny"
    assert rules.decide("User:root", HERE, READ, resource).rule == "SuperUser"
    assert AclRules(allow_everyone=True).decide("", "", READ, resource).rule == "DefaultAllow"


def test_a_change_is_seen_by_the_next_decision():
    rules = AclRules([acl()])
    assert may(rules)
    rules.remove(acl())
    assert not may(rules)
    rules.add(acl("or", pattern=PREFIXED))
    assert may(rules)
    rules.add(acl("*", READ, DENY))
    assert not may(rules)
    assert set(rules) == {acl("or", pattern=PREFIXED), acl("*", READ, DENY)}


def test_removing_what_is_not_there_changes_nothing():
    rules = AclRules([acl()])
    rules.add(acl())
    rules.remove(acl("others"))
    rules.remove(acl(host=HERE))
    assert (len(rules), may(rules)) == (1, True)


def test_acls_that_cannot_be_read_deny_everything_but_to_super_users():
    rules = AclRules([acl()], super_users=["User:root"], allow_everyone=True)
    rules.set_unreadable(True)
    assert not may(rules)
    assert not rules.allows_any("User:ann", HERE, READ, TOPIC)
    assert may(rules, principal="User:root")
    rules.set_unreadable(False)
    assert may(rules)


def test_the_decisions_that_are_kept_have_a_limit(monkeypatch):
    monkeypatch.setattr(acl_rules, "DECISIONS_MAX", 10)
    rules = AclRules([acl("t", pattern=PREFIXED)])
    assert all(may(rules, name=f"t{each}") for each in range(100))
    assert may(rules, name="t" * 5_000)
    assert len(rules._decided) <= 10
    assert all(len(question[3].name) < 5_000 for question in rules._decided)


# any resource of a type


def may_any(acls, operation=WRITE, **settings):
    return AclRules(acls, **settings).allows_any("User:ann", HERE, operation, TOPIC)


def test_one_topic_is_enough_to_write_to_any():
    assert may_any([acl(operation=WRITE)])
    assert not may_any([acl(operation=READ)])
    assert not may_any([acl(operation=WRITE, principal="User:bob")])
    assert not may_any([acl(operation=WRITE, host="10.0.0.2")])
    assert may_any([], super_users=["User:ann"])


def test_a_topic_that_is_denied_too_is_no_topic_to_write_to():
    assert not may_any([acl(operation=WRITE), acl("orders", WRITE, DENY)])
    assert not may_any([acl(operation=WRITE), acl("ord", ALL, DENY, pattern=PREFIXED)])
    assert not may_any([acl(operation=WRITE), acl("*", WRITE, DENY)])
    assert may_any([acl("ord", WRITE, pattern=PREFIXED), acl("orders", WRITE, DENY)])
    assert may_any([acl("*", WRITE), acl("ord", WRITE, DENY, pattern=PREFIXED)])


# the slow twin


def matches(each, resource):
    name = each.pattern.name
    if each.pattern.kind != resource.kind:
        return False
    if each.pattern.type is PREFIXED:
        return resource.name.startswith(name)
    return name in (resource.name, "*")


def concerns(each, principal, host, operations):
    return (
        each.principal in (principal, "User:*")
        and each.host in (host, "*")
        and each.operation in operations
    )


def slow(acls, super_users, allow_everyone, principal, host, operation, resource):
    if principal in super_users:
        return True
    found = [each for each in acls if matches(each, resource)]
    if not found:
        return allow_everyone
    implied = {DESCRIBE: "READ WRITE DELETE ALTER", "DESCRIBE_CONFIGS": "ALTER_CONFIGS"}
    allowing = {operation, ALL, *implied.get(operation, "").split()}
    if any(e.permission is DENY and concerns(e, principal, host, {operation, ALL}) for e in found):
        return False
    return any(e.permission is ALLOW and concerns(e, principal, host, allowing) for e in found)


def slow_any(acls, principal, host, operation):
    found = [
        each
        for each in acls
        if each.pattern.kind is TOPIC and concerns(each, principal, host, {operation, ALL})
    ]
    denied = [each.pattern for each in found if each.permission is DENY]
    if any(each.name == "*" and each.type is LITERAL for each in denied):
        return False
    for each in (each.pattern for each in found if each.permission is ALLOW):
        if each == Pattern(TOPIC, "*", LITERAL):
            return True
        covered = any(deny.type is PREFIXED and each.name.startswith(deny.name) for deny in denied)
        if not covered and not (each.type is LITERAL and each in denied):
            return True
    return False


names = st.sampled_from(["a", "ab", "abc", "abd", "b", "ba", "*", "*a"])
principals = st.sampled_from(["User:ann", "User:bob", "User:*", "Group:ann"])
addresses = st.sampled_from([HERE, "10.0.0.2", "*"])
operations = st.sampled_from(
    [READ, WRITE, DESCRIBE, ALL, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]
)
kinds = st.sampled_from([TOPIC, GROUP])
one = st.builds(
    Acl,
    st.builds(Pattern, kinds, names, st.sampled_from(PatternType)),
    principals,
    addresses,
    operations,
    st.sampled_from([ALLOW, ALLOW, DENY]),
)
asked = operations.filter(lambda each: each is not ALL)


@given(
    st.lists(one, max_size=12),
    st.lists(one, max_size=4),
    st.sets(principals, max_size=1),
    st.booleans(),
    st.lists(st.tuples(principals, addresses, asked, kinds, names), min_size=1, max_size=12),
)
@settings(max_examples=300, deadline=None)
def test_decisions_equal_those_of_a_scan_of_all_acls(acls, removed, supers, everyone, questions):
    rules = AclRules([*acls, *removed], super_users=supers, allow_everyone=everyone)
    for each in removed:
        rules.remove(each)
    left = [each for each in acls if each not in removed]
    assert len(rules) == len(set(left))
    for _ in range(2):  # the second answer is the one that was kept
        for principal, host, operation, kind, name in questions:
            resource = Resource(kind, name)
            expected = slow(left, supers, everyone, principal, host, operation, resource)
            assert rules.allows(principal, host, operation, resource) is expected
            assert rules.decide(principal, host, operation, resource).allowed is expected


@given(st.lists(one, max_size=8), principals, addresses, asked)
@settings(max_examples=300, deadline=None)
def test_questions_about_any_topic_equal_a_scan_of_all_acls(acls, principal, host, operation):
    expected = slow_any(acls, principal, host, operation)
    hard_coded = slow(acls, (), False, principal, host, operation, Resource(TOPIC, "hardcode"))
    assert AclRules(acls).allows_any(principal, host, operation, TOPIC) is (expected or hard_coded)


# planted mistakes


def deny_loses(monkeypatch):
    monkeypatch.setattr(acl_rules._Bucket, "table", lambda self, acl: self.allow)


def prefixed_matches_too_much(monkeypatch):
    def matching(self, name):
        yield from (each for start, each in self.prefixed.items() if start in name)
        yield from (each for start, each in self.literal.items() if start in (name, "*"))

    monkeypatch.setattr(acl_rules._Kind, "matching", matching)


def decisions_never_expire(monkeypatch):
    monkeypatch.setattr(AclRules, "_forget", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (deny_loses, test_a_deny_wins_over_an_allow_whichever_is_more_specific),
        (prefixed_matches_too_much, test_a_prefix_matches_names_that_begin_with_it),
        (decisions_never_expire, test_a_change_is_seen_by_the_next_decision),
    ],
)
def test_a_planted_mistake_is_found(plant, found_by, monkeypatch):
    found_by()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        found_by()


# time


def many(count):
    return [
        acl(f"team-{each % 100}.topic-{each}", WRITE, pattern=PREFIXED if each % 2 else LITERAL)
        for each in range(count)
    ]


def time_of(rules, decide):
    best = []
    for _ in range(30):
        begun = time.perf_counter()
        for each in range(200):
            decide(rules, each)
        best.append(time.perf_counter() - begun)
    return min(best)


def known(rules, each):
    rules.allows("User:ann", HERE, WRITE, Resource(TOPIC, "team-5.topic-5"))


def unknown(rules, each):
    rules.decide("User:ann", HERE, WRITE, Resource(TOPIC, f"team-{each % 10}.topic-{each % 10}"))


@pytest.mark.parametrize("decide", [known, unknown])
def test_a_decision_takes_the_same_time_with_ten_acls_and_with_ten_thousand(decide):
    few, lots = AclRules(many(10)), AclRules(many(10_000))
    ratio = min(time_of(lots, decide) / time_of(few, decide) for _ in range(5))
    assert ratio <= 1.5, ratio
