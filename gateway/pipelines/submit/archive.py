"""`gateway job archive` as a file for spark-submit, with the same options."""

from gateway.pipelines.submit.run import run

run("archive")
