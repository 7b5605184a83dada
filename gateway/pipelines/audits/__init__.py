"""Two sources of records compared: what each one holds, where they differ, and why."""
