import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies a topic in transactions, as a member of its group. tests/cluster/copier.py describes the
 * arguments, the points that it prints, and the gate.
 */
public class Copier {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true);
    private static final int KEYS = 24;
    private static final int RECORDS_MAX = 200;
    private static final double ABORTS = 0.1;
    private static final int RETRIES_MAX = 8;

    private final String bootstrap;
    private final String name;
    private final String run;
    private final String group;
    private final String source;
    private final String target;
    private final String newest;
    private final int partitions;
    private final Path gate;
    private final Random draw;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private int number;
    private boolean commits = true;

    public static void main(String[] words) throws Exception {
        try {
            new Copier(words).run();
        } catch (KafkaException fatal) {
            fatal.printStackTrace();
            // A closing producer would wait; the next one with this id aborts its transaction.
            Runtime.getRuntime().halt(1);
        }
    }

    private Copier(String[] words) {
        bootstrap = words[0];
        name = words[1];
        run = words[2];
        group = words[3];
        source = words[4];
        target = words[5];
        newest = words[6];
        partitions = Integer.parseInt(words[7]);
        gate = Path.of(words[8]);
        draw = new Random((words[9] + " " + name + " " + run).hashCode());
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", "40000");
        settings.put("max.block.ms", "15000");
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("max.poll.records", String.valueOf(RECORDS_MAX));
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private void run() throws Exception {
        retried(producer::initTransactions);
        at("init");
        consumer.subscribe(List.of(source));
        while (true) {
            commits = draw.nextDouble() >= ABORTS;
            number++;
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            if (!records.isEmpty()) {
                copy(records);
            }
        }
    }

    private void copy(ConsumerRecords<String, String> records) throws Exception {
        String transaction = name + "." + run + "." + number;
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        try {
            producer.beginTransaction();
            send(records, transaction);
            producer.flush();
            at("ongoing");
            for (TopicPartition place : records.partitions()) {
                List<ConsumerRecord<String, String>> of = records.records(place);
                ends.put(place, new OffsetAndMetadata(of.get(of.size() - 1).offset() + 1));
            }
            retried(() -> producer.sendOffsetsToTransaction(ends, consumer.groupMetadata()));
            at("pending");
            OUT.println("ending");
            if (commits) {
                retried(producer::commitTransaction);
            }
        } catch (KafkaException failed) {
            failed.printStackTrace();
            OUT.println("failed " + failed);
            commits = false;
        }
        if (!commits) {
            // Fails if the producer is fenced or its commit was ambiguous: then the job ends.
            retried(producer::abortTransaction);
            rewind();
        }
        OUT.println("ended " + records.count() + (commits ? " commit " : " abort ") + transaction);
    }

    private void send(ConsumerRecords<String, String> records, String transaction) {
        RecordHeader header =
                new RecordHeader("transaction", transaction.getBytes(StandardCharsets.UTF_8));
        Map<Integer, Integer> last = new HashMap<>();
        for (ConsumerRecord<String, String> each : records) {
            int value = Integer.parseInt(each.value());
            int key = value % KEYS;
            int place = (key % partitions + key / partitions) % partitions;
            last.put(key, value);
            producer.send(new ProducerRecord<>(
                    target, place, String.valueOf(key), each.value(), List.of(header)));
        }
        last.forEach((key, value) -> producer.send(new ProducerRecord<>(
                newest, 0, String.valueOf(key), String.valueOf(value), List.of(header))));
    }

    /** Goes back to the committed offsets; unstable ones are waited for. */
    private void rewind() {
        Collection<TopicPartition> mine = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(consumer.assignment());
        for (TopicPartition place : mine) {
            OffsetAndMetadata offset = found.get(place);
            consumer.seek(place, offset == null ? 0 : offset.offset());
        }
    }

    private interface Call {
        void run();
    }

    private static void retried(Call call) {
        for (int left = RETRIES_MAX; ; left--) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                System.err.println(late);
                if (left == 0) {
                    throw late;
                }
            }
        }
    }

    /** Prints the point, and waits there while the gate names it. */
    private void at(String point) throws Exception {
        OUT.println(point);
        boolean held = false;
        while (true) {
            String[] words = wanted();
            if (!words[0].equals(point)) {
                return;
            }
            if (!held) {
                held = true;
                commits = words[1].equals("commit");
                OUT.println("held " + point);
            }
            Thread.sleep(5);
        }
    }

    private String[] wanted() throws IOException {
        try {
            return Files.readString(gate).strip().split(" ");
        } catch (NoSuchFileException opened) {
            return new String[] {""};
        }
    }
}
