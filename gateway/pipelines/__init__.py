"""Jobs on Spark, and a Spark source that reads segments. Only the command line imports them.

archives   topics -> Parquet or Iceberg, exactly once, by offset ranges
replays    archive -> topic, every record unchanged
audits     compare two of: topic, archive, segments
direct     spark.read.format("ledger"): segments from bookies, without a gateway
shared     code that all of them use
"""
