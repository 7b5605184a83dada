"""One read by a Spark of its own: `spark_read (gateway|direct) TOPIC SERVERS METADATA`."""

from __future__ import annotations

import argparse
import warnings

from gateway.pipelines.direct import register
from gateway.pipelines.shared.session import new_session


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    for name in ("side", "topic", "bootstrap", "metadata"):
        words.add_argument(name)
    words.add_argument("--master", default="local[2]")
    words.add_argument("--conf", action="append", default=[])
    asked = words.parse_args()
    warnings.simplefilter("ignore")
    conf = dict(each.split("=", 1) for each in asked.conf)
    spark = new_session("read", asked.master, conf)
    if asked.side == "direct":
        register(spark)
        frame = spark.read.format("ledger").option("metadata", asked.metadata).load(asked.topic)
    else:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", asked.bootstrap)
        frame = reader.option("subscribe", asked.topic).load()
    frame.write.format("noop").mode("overwrite").save()
    spark.stop()


if __name__ == "__main__":
    main()
