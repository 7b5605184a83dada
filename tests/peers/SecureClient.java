import java.io.FileInputStream;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes and reads with each of the given client.properties, and prints a line for each.
 *
 * Arguments: files. A file also has `test.topic`, and `test.seconds` for which it writes. The line
 * is `FILE: read N` or `FILE: ExceptionName`.
 */
public class SecureClient {
    private static final long WAIT_MS = 15_000;

    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties keys = new Properties();
            try (FileInputStream in = new FileInputStream(file)) {
                keys.load(in);
            }
            System.out.println(file + ": " + outcome(keys));
        }
        System.exit(0);
    }

    private static String outcome(Properties keys) {
        keys.putAll(Map.of("max.block.ms", "" + WAIT_MS, "request.timeout.ms", "8000",
            "delivery.timeout.ms", "10000", "default.api.timeout.ms", "" + WAIT_MS,
            "linger.ms", "0", "auto.offset.reset", "earliest", "retry.backoff.ms", "50"));
        String topic = keys.getProperty("test.topic");
        long seconds = Long.parseLong(keys.getProperty("test.seconds", "0"));
        try {
            int written = write(keys, topic, seconds);
            int read = read(keys, topic, written);
            return "read " + read;
        } catch (Exception fault) {
            Throwable cause = fault;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName();
        }
    }

    private static int write(Properties keys, String topic, long seconds) throws Exception {
        int written = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(keys, new StringSerializer(), new StringSerializer())) {
            long end = System.nanoTime() + seconds * 1_000_000_000L;
            do {
                producer.send(new ProducerRecord<>(topic, "value " + written)).get();
                written++;
                Thread.sleep(seconds > 0 ? 100 : 0);
            } while (System.nanoTime() < end);
        }
        return written;
    }

    private static int read(Properties keys, String topic, int wanted) {
        int read = 0;
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(keys, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> all = List.of(new TopicPartition(topic, 0));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long end = System.nanoTime() + WAIT_MS * 1_000_000L;
            while (read < wanted && System.nanoTime() < end) {
                read += consumer.poll(Duration.ofMillis(500)).count();
            }
        }
        return read;
    }
}
