"""Jobs on Spark, and a Spark source that reads segments. Nothing else imports pyspark, or this.

archive   topics -> Parquet or Iceberg, exactly once by offset ranges
replay    archive -> topic, record by record as it was
audit     two of topic, archive and segments, compared
direct/   spark.read.format("ledger"): segments from bookies, no gateway between
"""
