"""Pack a folder every night with Airflow. Each mapped task writes one part, and the last task verifies the dataset.

Copy this file into the folder of DAGs. The workers need `shardtool` and a shared file system. Airflow retries a killed
task, and `--resume` keeps the finished shards. See docs/cluster.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag

SOURCE, OUTPUT, PARTS = "/data/imgs", "/data/shards/{{ ds }}/out-{000000..}.tar", 8


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False, max_active_runs=1)
def pack() -> None:
    """Write and verify the shards of one day."""
    create = f"shardtool create {SOURCE} '{OUTPUT}' --resume --progress plain --part"
    parts = BashOperator.partial(task_id="create", retries=3, retry_delay=timedelta(minutes=1)).expand(
        bash_command=[f"{create} {number}/{PARTS}" for number in range(1, PARTS + 1)]
    )
    verify = f"shardtool verify '{OUTPUT}' --source {SOURCE} --progress plain"
    parts >> BashOperator(task_id="verify", bash_command=verify)


pack()
