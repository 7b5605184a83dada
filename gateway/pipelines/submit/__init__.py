"""The jobs as files that spark-submit takes."""
