import java.io.FileInputStream;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of one group that come and go.
 *
 * Argument: a properties file with brokers, group, topic, count, shortest, longest (seconds), seed,
 * protocol (consumer or classic), session_ms (classic only) and the name with which the names of
 * members begin. The lines that it prints are those of tests/peers/go/members.go. SIGTERM lets all
 * leave.
 */
public class GroupMembers {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final Duration COMMIT = Duration.ofSeconds(10);
    private static volatile boolean ending = false;

    public static void main(String[] args) throws Exception {
        Properties keys = new Properties();
        try (FileInputStream in = new FileInputStream(args[0])) {
            keys.load(in);
        }
        List<Thread> places = new ArrayList<>();
        for (int place = 0; place < Integer.parseInt(keys.getProperty("count")); place++) {
            int number = place;
            places.add(new Thread(() -> live(number, keys)));
        }
        places.forEach(Thread::start);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ending = true;
            for (Thread each : places) {
                try {
                    each.join();
                } catch (InterruptedException ended) {
                    return;
                }
            }
        }));
    }

    private static void live(int place, Properties keys) {
        Random draw = new Random(Long.parseLong(keys.getProperty("seed")) * 1000 + place);
        double shortest = Double.parseDouble(keys.getProperty("shortest"));
        double longest = Double.parseDouble(keys.getProperty("longest"));
        for (int life = 0; !ending; life++) {
            double seconds = shortest + draw.nextDouble() * (longest - shortest);
            String name = keys.getProperty("name") + "-" + place + "." + life;
            new Member(name, keys).run(System.nanoTime() + (long) (seconds * 1e9));
        }
    }

    private static class Member implements ConsumerRebalanceListener {
        private final String name;
        private final String topic;
        private final KafkaConsumer<byte[], byte[]> consumer;

        Member(String name, Properties keys) {
            this.name = name;
            this.topic = keys.getProperty("topic");
            ByteArrayDeserializer bytes = new ByteArrayDeserializer();
            this.consumer = new KafkaConsumer<>(settings(keys), bytes, bytes);
        }

        private static Map<String, Object> settings(Properties keys) {
            Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", keys.getProperty("brokers"),
                "group.id", keys.getProperty("group"),
                "group.protocol", keys.getProperty("protocol"),
                "enable.auto.commit", "false",
                "auto.offset.reset", "earliest",
                "max.poll.records", "100"));
            if (keys.getProperty("protocol").equals("classic")) {
                settings.put("session.timeout.ms", keys.getProperty("session_ms"));
                settings.put("heartbeat.interval.ms", "1000");
                settings.put("partition.assignment.strategy", RangeAssignor.class.getName());
            }
            return settings;
        }

        void run(long endNs) {
            consumer.subscribe(List.of(topic), this);
            while (!ending && System.nanoTime() < endNs) {
                try {
                    process(consumer.poll(POLL));
                } catch (KafkaException fault) {
                    note("error", fault.toString().replace('\n', ' '));
                }
            }
            try {
                consumer.close(CloseOptions.timeout(COMMIT));
            } catch (KafkaException fault) {
                note("error", fault.toString().replace('\n', ' '));
            }
            note("left", "-");
        }

        private void process(ConsumerRecords<byte[], byte[]> found) {
            if (found.isEmpty()) {
                return;
            }
            int epoch = consumer.groupMetadata().generationId();
            for (TopicPartition place : found.partitions()) {
                String offsets = found.records(place).stream()
                    .map((ConsumerRecord<byte[], byte[]> each) -> "" + each.offset())
                    .collect(Collectors.joining(","));
                note("read", epoch + " " + place.partition() + " " + offsets);
            }
            consumer.commitSync(COMMIT);
        }

        private void note(String event, String more) {
            Instant now = Instant.now();
            long us = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
            System.out.println(us + " " + name + " " + event + " " + more);
        }

        private void noteAll(String event, Collection<TopicPartition> places) {
            if (!places.isEmpty()) {
                note(event, places.stream().map(each -> "" + each.partition())
                    .collect(Collectors.joining(",")));
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            noteAll("assigned", places);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            noteAll("revoked", places);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            noteAll("lost", places);
        }
    }
}
