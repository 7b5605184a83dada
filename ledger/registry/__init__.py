"""What a cluster knows of itself, below `/ledgers`, as Apache BookKeeper lays it out."""
