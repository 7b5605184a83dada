"""Where archived records live: Parquet files under a log of commits, or an Iceberg table."""
