"""spark.read.format("ledger"): segments read from bookies, many tasks for one partition."""
