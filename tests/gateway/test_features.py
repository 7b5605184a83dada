"""Goal: all gateways of a cluster act on the levels of features that they have read, and on no
others. No gateway writes a form of data that the cluster has given up.

Method: two or three gateways over one tree of simulated metadata: changes at once, damage, lost
replies. The gate without its record, a planted mistake, is found.
"""

import asyncio
import random

import pytest

from gateway.core.feature_levels import (
    GATEWAY_VERSION,
    METADATA_VERSION,
    TRANSACTION_VERSION,
    FeatureRefused,
    FeatureUpdate,
    Finalized,
    Form,
    UpgradeType,
)
from gateway.features.cluster_form import CLUSTER_ID, ClusterForm, decode_form
from gateway.features.features import Features
from gateway.features.stored_levels import LEVELS, decode_levels, encode_levels
from gateway.process.cluster_layout import lay_out_cluster
from ledger.errors import CorruptFormat, MetadataUnavailable
from ledger.sealed import seal, unseal
from tests.gateway.releases import THIS
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

UP, SAFE, _ = UpgradeType
UPGRADE = (
    FeatureUpdate(METADATA_VERSION, 30),
    FeatureUpdate(TRANSACTION_VERSION, 2),
    FeatureUpdate(GATEWAY_VERSION, 3),
)
DOWNGRADE = FeatureUpdate(TRANSACTION_VERSION, 0, SAFE), FeatureUpdate(GATEWAY_VERSION, 2, SAFE)
SOON_S = 5


class Interrupted(SimMetadata):
    """Run `interlude`, if any, once, after the levels were read and before they are written."""

    interlude = None

    async def multi(self, ops):
        if self.interlude is not None:
            interlude, self.interlude = self.interlude, None
            await interlude()
        await super().multi(ops)


async def older_cluster(form=Form.EPOCH_BASES):
    tree = MetadataTree()
    await SimMetadata(tree).create(CLUSTER_ID, ClusterForm("c", form).encode(), parents=True)
    return tree


async def new_cluster(supported=THIS):
    tree = MetadataTree()
    await lay_out_cluster(SimMetadata(tree), supported)
    return tree


async def gateway(tree, supported=THIS, store=None, node_id=0):
    features = Features(store or SimMetadata(tree), supported, node_id)
    await features.load()
    return features


async def upgraded(features, updates=UPGRADE):
    await features.update(updates, validate_only=False)


async def until(holds):
    async with asyncio.timeout(SOON_S):
        while not holds():
            await asyncio.sleep(0.01)


def form_of(tree):
    return decode_form(tree.get(CLUSTER_ID).data).form


def stored(tree):
    return decode_levels(tree.get(LEVELS).data).finalized


# -- one gateway -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [Form.FIRST, Form.EPOCH_BASES])
async def test_a_gateway_in_an_older_cluster_writes_nothing_and_no_new_form(form):
    tree = await older_cluster(form)
    before = dict(tree.nodes)
    features = await gateway(tree)
    features.begin_new_forms()
    assert not features.writes_new_forms
    assert features.level(TRANSACTION_VERSION) == 0
    assert features.level(GATEWAY_VERSION) == form
    changed = {path for path, node in tree.nodes.items() if node != before.get(path)}
    assert changed == {"/gateway/features"}, "only the node that is watched"
    await features.close()


async def test_levels_that_are_unknown_exclude_no_transactions():
    tree = await new_cluster()
    assert Features(SimMetadata(tree), THIS, 0).transactions_may_exist


async def test_the_line_about_a_low_level_is_logged_once(capsys):
    features = await gateway(await older_cluster())
    for _ in range(3):
        features.begin_new_forms()
    assert capsys.readouterr().err.count("gateway feature upgrade") == 1
    await features.close()


async def test_a_new_cluster_writes_new_forms_from_their_first_use_on():
    tree = await new_cluster()
    features = await gateway(tree)
    assert features.level(TRANSACTION_VERSION) == 2
    assert not features.writes_new_forms
    assert not features.transactions_may_exist
    features.begin_new_forms()
    features.begin_new_forms()
    await until(lambda: features.writes_new_forms)
    assert features.transactions_may_exist
    assert stored(tree).used == Form.TRANSACTIONS
    after_restart = await gateway(tree)
    assert after_restart.writes_new_forms
    assert after_restart.transactions_may_exist
    assert after_restart.finalized.epoch == features.finalized.epoch == 0


async def test_an_upgrade_changes_the_form_of_the_cluster_with_the_levels():
    tree = await older_cluster(Form.FIRST)
    features = await gateway(tree)
    await features.update(UPGRADE, validate_only=True)
    assert form_of(tree) == Form.FIRST
    assert features.level(TRANSACTION_VERSION) == 0
    await upgraded(features)
    assert form_of(tree) == stored(tree).level(GATEWAY_VERSION) == Form.TRANSACTIONS
    assert features.finalized.epoch == 1
    await upgraded(features, DOWNGRADE)
    assert form_of(tree) == stored(tree).level(GATEWAY_VERSION) == Form.INTERNAL_TOPICS
    assert features.finalized.epoch == 2
    await upgraded(features, DOWNGRADE)
    assert features.finalized.epoch == 2, "nothing changed"


async def test_no_downgrade_after_the_first_use():
    features = await gateway(await new_cluster())
    features.begin_new_forms()
    await until(lambda: features.writes_new_forms)
    with pytest.raises(FeatureRefused, match="Data of version 3 may exist"):
        await upgraded(features, DOWNGRADE)
    assert features.writes_new_forms


# -- two gateways ----------------------------------------------------------------------------------


async def two_gateways(tree):
    store = Interrupted(tree)
    return store, await gateway(tree, store=store), await gateway(tree, node_id=1)


async def test_a_gateway_follows_the_changes_of_another():
    _, ours, theirs = await two_gateways(await older_cluster())
    await upgraded(theirs)
    await until(lambda: ours.level(TRANSACTION_VERSION) == 2)
    assert ours.finalized == theirs.finalized
    theirs.begin_new_forms()
    await until(lambda: ours.writes_new_forms)


async def test_a_first_use_meanwhile_refuses_a_downgrade():
    tree = await new_cluster()
    store, ours, theirs = await two_gateways(tree)

    async def begin():
        theirs.begin_new_forms()
        await until(lambda: theirs.writes_new_forms)

    store.interlude = begin
    with pytest.raises(FeatureRefused, match="Data of version 3 may exist"):
        await upgraded(ours, DOWNGRADE)
    assert form_of(tree) == Form.TRANSACTIONS


async def test_a_downgrade_meanwhile_refuses_the_first_use():
    tree = await new_cluster()
    store, ours, theirs = await two_gateways(tree)
    store.interlude = lambda: upgraded(theirs, DOWNGRADE)
    ours.begin_new_forms()
    await until(lambda: ours.level(GATEWAY_VERSION) == Form.INTERNAL_TOPICS)
    assert not ours.writes_new_forms
    assert stored(tree).used == Form.INTERNAL_TOPICS


async def test_of_two_changes_at_once_the_second_is_checked_again():
    tree = await new_cluster()
    store, ours, theirs = await two_gateways(tree)
    store.interlude = lambda: upgraded(theirs, [FeatureUpdate(TRANSACTION_VERSION, 0, SAFE)])
    with pytest.raises(FeatureRefused, match="Can't downgrade to a newer version"):
        await upgraded(ours, [FeatureUpdate(TRANSACTION_VERSION, 1, SAFE)])
    assert stored(tree).level(TRANSACTION_VERSION) == 0
    assert stored(tree).epoch == 1


async def test_first_upgrades_at_once_are_made_once():
    tree = await older_cluster()
    gateways = [await gateway(tree, node_id=number) for number in range(3)]
    await asyncio.gather(*(upgraded(each) for each in gateways))
    assert stored(tree).epoch == 1
    assert len({each.finalized.epoch for each in gateways}) == 1


async def test_levels_that_another_gateway_does_not_support_are_refused():
    tree = await older_cluster()

    async def others():
        return {4: {}}

    features = Features(SimMetadata(tree), THIS, 0, others)
    await features.load()
    with pytest.raises(FeatureRefused, match="Broker 4 does not support this feature"):
        await upgraded(features)
    assert form_of(tree) == Form.EPOCH_BASES


# -- damage ----------------------------------------------------------------------------------------

LATER = seal({**unseal(encode_levels(Finalized(0, {}, 0), "life"), ""), "version": 2})
NO_LEVELS = seal({"version": 1, "life": "l", "epoch": 0, "levels": {"a": -1}, "used": 0})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a sealed"),
        (b"1 00000000 {}", "checksum"),
        (LATER, "version 2"),
        (NO_LEVELS, "no"),
    ],
)
async def test_a_gateway_starts_with_a_damaged_node_and_acts_on_no_level(data, reason):
    tree = await new_cluster()
    good = tree.get(LEVELS).data
    tree.set(LEVELS, data, -1)
    features = await gateway(tree)
    assert reason in features.unreadable
    assert features.finalized == Finalized(-1, {}, 0)
    features.begin_new_forms()
    assert not features.writes_new_forms
    with pytest.raises(CorruptFormat):
        await upgraded(features)
    assert tree.get(LEVELS).data == data, "nothing was overwritten"
    tree.set(LEVELS, good, -1)
    await until(lambda: features.level(TRANSACTION_VERSION) == 2)
    assert features.unreadable == ""
    await features.close()


async def test_a_gateway_forgets_levels_that_become_unreadable():
    tree = await new_cluster()
    features = await gateway(tree)
    features.begin_new_forms()
    await until(lambda: features.writes_new_forms)
    good = tree.get(LEVELS).data
    tree.set(LEVELS, good[:-1], -1)
    await until(lambda: not features.writes_new_forms)
    tree.set(LEVELS, good, -1)
    await until(lambda: features.writes_new_forms)


async def test_a_deleted_node_is_made_again_from_the_form_and_no_epoch_returns():
    tree = await new_cluster()
    ours, theirs = await gateway(tree), await gateway(tree, node_id=1)
    await upgraded(ours, [FeatureUpdate(TRANSACTION_VERSION, 1, SAFE)])
    await until(lambda: theirs.level(TRANSACTION_VERSION) == 1)
    tree.delete(LEVELS)
    await until(lambda: ours.finalized.epoch == theirs.finalized.epoch == -1)
    await upgraded(theirs)
    await until(lambda: ours.finalized.epoch == 2)
    assert ours.level(TRANSACTION_VERSION) == 2
    with pytest.raises(FeatureRefused, match="may exist"):
        await upgraded(ours, DOWNGRADE)  # that there is no data is no longer recorded


async def test_levels_of_a_later_release_are_refused_at_the_start():
    tree = await new_cluster()
    levels = Finalized(3, {GATEWAY_VERSION: 1, "of.the.future": 1}, 1)
    tree.set(LEVELS, encode_levels(levels, "life"), -1)
    with pytest.raises(CorruptFormat, match=r"of\.the\.future has level 1"):
        await gateway(tree)


# -- faults ----------------------------------------------------------------------------------------


class WithoutRecord(Features):
    """A planted mistake: the gate depends on the level alone."""

    @property
    def writes_new_forms(self):
        return self.level(GATEWAY_VERSION) >= Form.TRANSACTIONS


class Watcher:
    """Compares what is stored with what the gateways would write, after each step."""

    def __init__(self, tree, gateways):
        self.tree, self.gateways = tree, gateways
        self.wrote = False
        self.epoch = 0

    def violation(self):
        now = stored(self.tree)
        if form_of(self.tree) != now.level(GATEWAY_VERSION):
            return "the form is not the level"
        if now.epoch < self.epoch:
            return "the epoch fell"
        self.epoch = now.epoch
        self.wrote = self.wrote or any(each.writes_new_forms for each in self.gateways)
        if self.wrote and now.level(GATEWAY_VERSION) < Form.TRANSACTIONS:
            return "a form that was given up was written"
        return None


async def changes(features, draw):
    """Change levels, and begin to write new forms, at random."""
    for _ in range(6):
        await asyncio.sleep(draw.random() * 0.1)
        if draw.random() < 0.15:
            features.begin_new_forms()
        try:
            await upgraded(features, draw.choice([UPGRADE, DOWNGRADE]))
        except (FeatureRefused, MetadataUnavailable):
            pass


async def worked(kind, seed):
    """Let three gateways change levels at random. Returns a violation of the rule, or None."""
    draw = random.Random(seed)
    tree = await new_cluster()
    faults = MetadataFaults(random.Random(seed + 1), lag_s=draw.choice([0.0, 0.2]))
    gateways = [kind(SimMetadata(tree, faults), THIS, node_id) for node_id in range(3)]
    for each in gateways:
        await each.load()
    faults.unsent, faults.reply_lost = 0.02, 0.05
    watcher = Watcher(tree, gateways)
    work = [asyncio.ensure_future(changes(each, draw)) for each in gateways]
    found = None
    while found is None and not all(each.done() for each in work):
        await asyncio.sleep(0.001)
        found = watcher.violation()
    for each in work:
        each.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    for each in gateways:
        await each.close()
    return found


@pytest.mark.slow
def test_no_gateway_writes_a_form_that_was_given_up():
    for seed in range(60):
        assert simulate(worked(Features, seed), random.Random(seed)) is None, seed


@pytest.mark.slow
def test_a_gate_without_the_record_is_found():
    found = [simulate(worked(WithoutRecord, seed), random.Random(seed)) for seed in range(10)]
    assert "a form that was given up was written" in found
