// Writes and reads with the stock kafkajs for each case, and prints a line for each outcome.
// Argument: a file with JSON: the CA certificate, and cases with name, broker, topic, sasl and ssl.
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const { ca, cases } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));

async function outcome({ broker, topic, sasl, key, cert }) {
  const options = { brokers: [broker], logLevel: logLevel.NOTHING, retry: { retries: 2 } };
  options.ssl = { ca: [ca], key, cert };
  if (sasl) {
    const { token, ...others } = sasl;
    options.sasl = token ? { ...others, oauthBearerProvider: async () => ({ value: token }) } : sasl;
  }
  const kafka = new Kafka(options);
  const producer = kafka.producer({ retry: { retries: 2 } });
  const consumer = kafka.consumer({ groupId: `js-${topic}`, retry: { retries: 2 } });
  try {
    await producer.connect();
    await producer.send({ topic, messages: [{ value: "value" }] });
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    return await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error));
      consumer.run({ eachMessage: async () => resolve("read") });
      setTimeout(() => resolve("nothing read"), 20000).unref();
    });
  } catch (error) {
    const cause = error.cause || error;
    return cause.type || cause.name;
  } finally {
    await producer.disconnect().catch(() => {});
    await consumer.disconnect().catch(() => {});
  }
}

(async () => {
  for (const each of cases) {
    console.log(`${each.name}: ${await outcome(each)}`);
  }
  process.exit(0);
})();
