"""The audit job: compare two sources of records, and explain the differences."""
