"""UpdateFeatures, key 57, v0-v2: changes the finalized levels of features, all of them or none.

v1 validate only, kinds of downgrades · v2 no results of single features.
As in Kafka, the `allow_downgrade` of v0 has no effect. The timeout is ignored: a change is one
write to the metadata store.
Source: KIP-584, KIP-778, KIP-1022; Kafka, QuorumController.updateFeatures.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.core.feature_levels import FeatureRefused, FeatureUpdate, UpgradeType
from gateway.core.shown_text import bounded
from gateway.errors import admin_code
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from ledger.errors import LedgerError

_KINDS_FROM = 1
_RESULTS_UNTIL = 1


async def handle(request: Request, ctx: Context) -> Reply:
    updates: list[FeatureUpdate] = []
    async for each in with_pauses(request.body.feature_updates):
        kind = each.upgrade_type if request.version >= _KINDS_FROM else UpgradeType.UPGRADE
        updates.append(FeatureUpdate(each.feature, each.max_version_level, kind))
    validate_only = request.version >= _KINDS_FROM and request.body.validate_only
    try:
        await ctx.features.update(updates, validate_only=validate_only)
    except FeatureRefused as refused:
        text = "The update failed for all features since the following feature had an error: "
        return _failed(ErrorCode.invalid_update_version, text + str(refused))
    except LedgerError as error:
        return _failed(admin_code(error), str(error))
    results = Rows(request, "results")
    if request.version <= _RESULTS_UNTIL:
        for update in updates:
            await results.add(
                Reply(feature=update.name, error_code=ErrorCode.none, error_message="NONE")
            )
    return Reply(error_code=ErrorCode.none, error_message=None, results=results.result())


def _failed(code: ErrorCode, text: str) -> Reply:
    return Reply(error_code=code, error_message=bounded(text), results=[])


API = Api(key=57, name="UpdateFeatures", versions=range(3), handle=handle)
