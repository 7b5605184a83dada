"""The jobs as files for spark-submit."""
