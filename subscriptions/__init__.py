"""Committed offsets of Kafka consumer groups, and positions of native subscribers."""
