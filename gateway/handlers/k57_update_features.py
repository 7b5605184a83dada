"""UpdateFeatures, key 57, v0-v2: changes the finalized levels of features, all of them or none.

v1 validate only, kinds of downgrades · v2 no results of single features.
As in Kafka, the `allow_downgrade` of v0 has no effect. The timeout is ignored: a change is one
write to the metadata store.
Source: KIP-584, KIP-778, KIP-1022; Kafka, QuorumController.updateFeatures.
"""

from __future__ import annotations

from collections.abc import Collection

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.feature_levels import FeatureRefused, FeatureUpdate, UpgradeType
from gateway.core.shown_text import bounded
from gateway.errors import admin_code
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster
from ledger.errors import LedgerError

_KINDS_FROM = 1
_RESULTS_UNTIL = 1
_FEATURES_MAX = 1_000


async def handle(request: Request, ctx: Context) -> Reply:
    if not allows_cluster(request, ctx, Operation.ALTER):
        return _failed(CLUSTER_DENIED, CLUSTER_TEXT)
    validate_only = request.version >= _KINDS_FROM and request.body.validate_only
    updates = await _updates(request)
    code, text = ErrorCode.none, ""
    try:
        await ctx.features.update(updates, validate_only=validate_only)
    except FeatureRefused as refused:
        text = "The update failed for all features since the following feature had an error: "
        code, text = ErrorCode.invalid_update_version, text + str(refused)
    except LedgerError as error:
        code, text = admin_code(error), str(error)
    if not validate_only:
        from gateway.handlers.changes import note_change  # many gateways are never changed

        for each in updates:
            note_change(request, "ALTER", f"FEATURE:{each.name}", code.name.upper())
    if code is not ErrorCode.none:
        return _failed(code, text)
    results = Rows(request, "results")
    if request.version <= _RESULTS_UNTIL:
        for each in request.body.feature_updates:
            await results.add(
                Reply(feature=each.feature, error_code=ErrorCode.none, error_message="NONE")
            )
    return Reply(error_code=ErrorCode.none, error_message=None, results=results.result())


async def _updates(request: Request) -> Collection[FeatureUpdate]:
    """Return the last update of each feature, in the order of their first ones.

    Those after the first `_FEATURES_MAX` are left out: so many are refused, as most are unknown.
    """
    updates: dict[str, FeatureUpdate] = {}
    async for each in with_pauses(request.body.feature_updates, request):
        if each.feature in updates or len(updates) < _FEATURES_MAX:
            kind = each.upgrade_type if request.version >= _KINDS_FROM else UpgradeType.UPGRADE
            updates[each.feature] = FeatureUpdate(each.feature, each.max_version_level, kind)
    return updates.values()


def _failed(code: ErrorCode, text: str) -> Reply:
    return Reply(error_code=code, error_message=bounded(text), results=[])


API = Api(key=57, name="UpdateFeatures", versions=range(3), handle=handle)
