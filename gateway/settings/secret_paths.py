"""The nodes of the metadata store that hold secrets of users."""

from __future__ import annotations

from typing import Final

from gateway.settings.scram_users import DECOY_SECRET
from gateway.settings.scram_users import ROOT as SCRAM_USERS

SECRET_PATHS: Final = (SCRAM_USERS, DECOY_SECRET)
"""Neither these nodes nor those below may be read by the identity that only reads."""
