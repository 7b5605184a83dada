"""Maintenance of an archive in Airflow: archive what is left, compact, audit; then consumers run.

Copy this file into Airflow's folder of DAGs. Tasks after `audit` run only if it exits with 0.
On the workers, /app is a source tree after `make spark`. The gateways are those of
compose/cluster.yaml.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

ARCHIVE = "s3a://bucket/archive"
JOB = "/app/.venv-spark/bin/python -m gateway job"
SERVERS = "--bootstrap gateway-1:29092,gateway-2:29092 --master local[2] -o json"

with DAG(
    dag_id="archive_maintenance",
    schedule="15 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run archives all that is there, so missed runs need no repetition
    max_active_runs=1,
) as dag:
    # Runs are safe to repeat: an archive job commits each offset once.
    archive = BashOperator(
        task_id="archive",
        bash_command=f"{JOB} archive flights --to {ARCHIVE} --compact --file-size 256MiB {SERVERS}",
        retries=3,
        retry_delay=timedelta(minutes=5),
    )
    # A difference is no error that passes: it is not retried.
    audit = BashOperator(
        task_id="audit",
        bash_command=f"{JOB} audit topic:flights archive:{ARCHIVE}#flights {SERVERS}",
        retries=0,
    )
    archive >> audit
