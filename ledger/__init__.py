"""A replicated log service: ledgers on bookies, streams made of ledgers. Knows nothing of Kafka."""
