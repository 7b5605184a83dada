"""Compares the gateway with Apache Kafka 4.3: the same frames to both, answers field by field."""
