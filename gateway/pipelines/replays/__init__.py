"""The replay job: write archived records into a topic, exactly once, across crashes."""
