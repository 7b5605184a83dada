"""The levels of features that this release supports, and those of the one before it."""

from gateway.core.feature_levels import (
    GATEWAY_VERSION,
    METADATA_VERSION,
    Form,
    LevelRange,
    supported_levels,
)

THIS = supported_levels()
EARLIER = {
    METADATA_VERSION: THIS[METADATA_VERSION],
    GATEWAY_VERSION: LevelRange(Form.FIRST, Form.INTERNAL_TOPICS),
}
"""Those of the last release without transactions."""
