"""Code that all jobs use: offset ranges, errors, small files, the Spark session, topic lookups."""
