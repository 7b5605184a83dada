"""Archived records back into a topic, once each, however often the job or a server dies."""
