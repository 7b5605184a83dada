"""The Kafka face of the ledger service."""
