// Runs a few transactions with the stock kafkajs, and prints a line for each outcome.
// Arguments: the bootstrap address and a topic.
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING });

function producer() {
  return kafka.producer({
    transactionalId: topic,
    idempotent: true,
    maxInFlightRequests: 1,
    retry: { retries: 2 },
  });
}

async function one(from, value, commit) {
  const transaction = await from.transaction();
  await transaction.send({ topic, messages: [{ value }] });
  await (commit ? transaction.commit() : transaction.abort());
}

// kafkajs does not wait for the end of the transaction before, so it may have to begin again.
async function withOffsets(from, offset) {
  const topics = [{ topic, partitions: [{ partition: 0, offset }] }];
  for (;;) {
    const transaction = await from.transaction();
    try {
      await transaction.sendOffsets({ consumerGroupId: topic, topics });
      return transaction;
    } catch (error) {
      if (error.type !== "CONCURRENT_TRANSACTIONS") {
        throw error;
      }
      await transaction.abort();
    }
  }
}

async function offsets(from, offset, commit) {
  const transaction = await withOffsets(from, offset);
  await (commit ? transaction.commit() : transaction.abort());
  const next = await withOffsets(from, "9"); // begins only after that end is complete
  await next.abort();
  const admin = kafka.admin();
  await admin.connect();
  const [found] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
  console.log(`offset: ${found.partitions[0].offset}`);
  await admin.disconnect();
}

async function main() {
  const first = producer();
  await first.connect();
  await one(first, "first", true);
  await one(first, "aborted", false);
  await offsets(first, "1", false);
  await offsets(first, "2", true);
  const second = producer();
  await second.connect();
  await one(second, "second", true);
  try {
    await one(first, "late", true);
    console.log("late: done");
  } catch (error) {
    console.log(`late: ${error.type ?? error.name}`);
  }
  await second.disconnect();
  await first.disconnect();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.log(error);
    process.exit(1);
  }
);
