"""What all jobs use: offset ranges, errors, small files, the Spark session and the admin client."""
