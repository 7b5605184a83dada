"""Goal: levels of features change as in Apache Kafka 4.3, and no form that has data is given up.

Method: the pure rules. Codes and texts of all refusals are compared with Kafka's in
`tests/compat/differential`; here are the rules that Kafka does not have, and the order of Java.
"""

import pytest

from gateway.core.feature_levels import (
    GATEWAY_VERSION,
    GROUP_VERSION,
    METADATA_VERSION,
    TRANSACTION_VERSION,
    Cluster,
    FeatureRefused,
    FeatureUpdate,
    Form,
    UpgradeType,
    before_features,
    beginning,
    changed,
    newest,
    supported_levels,
)
from gateway.core.java_map import CHARACTERS_MAX, in_map_order, java_hash
from tests.gateway.releases import EARLIER, THIS

NEW = newest(THIS)
UP, SAFE, UNSAFE = UpgradeType


def alone(supported=THIS):
    return Cluster(0, supported, {})


def refusal(before, *updates, cluster=None):
    with pytest.raises(FeatureRefused) as refused:
        changed(before, [FeatureUpdate(*each) for each in updates], cluster or alone())
    return str(refused.value)


def after(before, *updates, cluster=None):
    return changed(before, [FeatureUpdate(*each) for each in updates], cluster or alone())


def test_a_new_cluster_begins_with_the_newest_levels():
    newest_of_kafka = {METADATA_VERSION: 30, TRANSACTION_VERSION: 2, GROUP_VERSION: 1}
    assert NEW.levels == {**newest_of_kafka, GATEWAY_VERSION: 3}
    assert newest(EARLIER).levels == {METADATA_VERSION: 30, GATEWAY_VERSION: 2}


@pytest.mark.parametrize("form", [Form.FIRST, Form.EPOCH_BASES])
def test_a_cluster_that_never_stored_features_writes_only_its_form(form):
    levels = before_features(form)
    assert levels.level(GATEWAY_VERSION) == form
    assert levels.level(TRANSACTION_VERSION) == 0
    assert not levels.may_write(Form.INTERNAL_TOPICS)


def test_an_upgrade_of_all_features_at_once_opens_the_gate_after_the_record():
    before = before_features(Form.FIRST)
    newer = after(before, *NEW.levels.items())
    assert newer.levels == NEW.levels
    assert newer.epoch == before.epoch + 1
    assert newer.may_write(Form.INTERNAL_TOPICS)
    assert not newer.may_write(Form.TRANSACTIONS)
    assert beginning(newer).may_write(Form.TRANSACTIONS)
    assert beginning(newer).epoch == newer.epoch, "the levels are the same"


def test_the_transaction_protocol_needs_the_form_of_transactions():
    text = "because it depends on gateway.version level 3"
    before = before_features(Form.EPOCH_BASES)
    assert text in refusal(before, (TRANSACTION_VERSION, 1))
    assert text in refusal(NEW, (GATEWAY_VERSION, 2, SAFE))
    both = after(NEW, (GATEWAY_VERSION, 2, SAFE), (TRANSACTION_VERSION, 0, SAFE))
    assert both.levels == {METADATA_VERSION: 30, GATEWAY_VERSION: 2, GROUP_VERSION: 1}


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_a_form_is_kept_once_its_data_may_exist(kind):
    used = beginning(NEW)
    down = (GATEWAY_VERSION, 2, kind), (TRANSACTION_VERSION, 0, kind)
    assert after(NEW, *down).level(GATEWAY_VERSION) == 2
    assert "Data of version 3 may exist" in refusal(used, *down)
    assert "Data of version 2 may exist" in refusal(NEW, (GATEWAY_VERSION, 1, kind), down[1])
    kept = after(used, (TRANSACTION_VERSION, 0, kind))  # as in Kafka, which serves transactions
    assert kept.may_write(Form.TRANSACTIONS)


def test_an_older_cluster_can_go_back_until_it_was_upgraded():
    before = before_features(Form.FIRST)
    upgraded = after(before, (GATEWAY_VERSION, 1))
    assert "Data of version 1 may exist" in refusal(upgraded, (GATEWAY_VERSION, 0, SAFE))


@pytest.mark.parametrize("supported", [{}, EARLIER])
def test_a_level_that_another_gateway_does_not_support_is_refused(supported):
    cluster = Cluster(0, THIS, {7: THIS, 8: supported})
    text = refusal(before_features(1), (GATEWAY_VERSION, 3), cluster=cluster)
    assert "Broker 8 " in text
    assert "Broker 7 " not in text


def test_groups_of_the_consumer_protocol_need_log_segments_everywhere():
    before = before_features(3)
    without = supported_levels(log_segments=False)
    reason = "keeps committed offsets without log segments, which this feature needs."
    assert reason in refusal(before, (GROUP_VERSION, 1), cluster=alone(without))
    assert f"Broker 8 {reason}" in refusal(
        before, (GROUP_VERSION, 1), cluster=Cluster(0, THIS, {7: THIS, 8: without})
    )
    assert after(before, (GROUP_VERSION, 1)).level(GROUP_VERSION) == 1
    assert newest(without).level(GROUP_VERSION) == 0


def test_all_levels_change_or_none():
    before = before_features(1)
    assert "nothing" in refusal(before, (METADATA_VERSION, 30), ("nothing", 1))
    assert after(before, (METADATA_VERSION, 29)) is before
    assert after(before, (GROUP_VERSION, 0), (TRANSACTION_VERSION, 0)) is before


@pytest.mark.parametrize("level", [-(2**15), -1, 4, 2**15 - 1])
@pytest.mark.parametrize("kind", [-128, 0, UP, SAFE, UNSAFE, 4])
def test_no_level_outside_of_the_range_is_accepted(level, kind):
    for name in (METADATA_VERSION, TRANSACTION_VERSION, GATEWAY_VERSION, "unknown", ""):
        assert refusal(NEW, (name, level, kind))


def test_a_long_name_is_cut_in_the_text():
    assert len(refusal(NEW, ("n" * 100_000, 1))) < 1_000


# -- the order of Java ---------------------------------------------------------------------------


def test_the_hash_is_that_of_java():
    assert java_hash("") == 0
    assert java_hash("AaAa") == java_hash("BBBB") == 2_031_744


def test_names_come_in_the_order_of_a_hash_map_and_equal_hashes_in_that_of_the_request():
    assert in_map_order(["c", "b", "a"]) == ["a", "b", "c"]
    assert in_map_order(["BBBB", "AaAa"]) == ["BBBB", "AaAa"]
    assert in_map_order(["AaAa", "BBBB"]) == ["AaAa", "BBBB"]


def test_long_names_keep_their_order():
    names = ["b" * CHARACTERS_MAX, "a"]
    assert in_map_order(names) == names
