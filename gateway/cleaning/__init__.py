"""Compaction of topics: the cleaner process, its schedule and its reports."""
