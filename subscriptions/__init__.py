"""Who has read how far: positions of subscribers and of Kafka consumer groups."""
