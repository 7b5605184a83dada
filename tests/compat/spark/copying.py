"""A process that copies a topic into Parquet files: something to kill.

Run as `python -m tests.compat.spark.copying BOOTSTRAP TOPIC PLACE LIMIT`, again after each kill; it
ends when it has copied what there was at its start.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import cast

from tests.compat.spark.rig import copy_into_files
from tests.peers.spark import new_session


def main(arguments: list[str]) -> int:
    bootstrap, topic, place, limit = arguments
    warnings.simplefilter("ignore")  # pyspark on newer pandas
    spark = new_session("copying", Path(place) / "spark")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    frame = reader.options(subscribe=topic, includeHeaders=True, **options).load()
    copy_into_files(frame, Path(place), availableNow=True).awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(cast("list[str]", sys.argv[1:])))
