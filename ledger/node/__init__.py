"""The processes of the ledger tier: `bookie serve` and `bookie audit`."""
