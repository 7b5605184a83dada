"""The finalized features of a cluster: stored, and followed by every gateway."""
