"""The nodes of a cluster below `/ledgers`, as Apache BookKeeper lays them out."""
