import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs scenarios of transactions with the stock Java clients, and prints one line for each outcome.
 * The lines name no ids, offsets of time or addresses, so two brokers can be compared by them.
 *
 * <p>Arguments: the bootstrap address, then the names of scenarios.
 */
public class TransactionScenarios {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true);
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static String bootstrap;
    private static String scenario;
    private static Admin admin;

    public static void main(String[] words) throws Exception {
        bootstrap = words[0];
        try (Admin open = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = open;
            for (int at = 1; at < words.length; at++) {
                scenario = words[at];
                say("begin");
                run();
            }
        }
    }

    private static void run() throws Exception {
        switch (scenario) {
            case "commit" -> ends(true);
            case "abort" -> ends(false);
            case "two-partitions" -> twoPartitions();
            case "a-second-producer" -> aSecondProducer();
            case "an-administrator-fences" -> anAdministratorFences();
            case "offsets" -> offsets();
            case "offsets-of-a-stale-member" -> offsetsOfAStaleMember();
            case "a-timeout" -> aTimeout();
            case "a-timeout-that-is-too-long" -> aTimeoutThatIsTooLong();
            case "no-transaction" -> noTransaction();
            case "a-record-that-is-too-large" -> aRecordThatIsTooLarge();
            case "lists" -> lists();
            case "an-administrator-aborts" -> anAdministratorAborts();
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    private static void ends(boolean commit) throws Exception {
        String topic = topic("one", 1);
        try (KafkaProducer<String, String> producer = producer("id")) {
            for (int round = 0; round < 3; round++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "k", "v" + round)).get();
                say("while open: " + read(topic, 0, true));
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        say("committed: " + read(topic, 0, true));
        say("uncommitted: " + read(topic, 0, false));
    }

    private static void twoPartitions() throws Exception {
        String topic = topic("two", 2);
        try (KafkaProducer<String, String> producer = producer("id")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "a"));
            producer.send(new ProducerRecord<>(topic, 1, "k", "b"));
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, "k", "c"));
            producer.abortTransaction();
        }
        say("0: " + read(topic, 0, true) + ", 1: " + read(topic, 1, true));
    }

    private static void aSecondProducer() throws Exception {
        String topic = topic("one", 1);
        try (KafkaProducer<String, String> first = producer("id")) {
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, "k", "of the first")).get();
            try (KafkaProducer<String, String> second = producer("id")) {
                attempt("send", () -> first.send(new ProducerRecord<>(topic, "k", "late")).get());
                attempt("commit", first::commitTransaction);
                second.beginTransaction();
                second.send(new ProducerRecord<>(topic, "k", "of the second")).get();
                second.commitTransaction();
            }
        }
        say("committed: " + read(topic, 0, true));
        say("uncommitted: " + read(topic, 0, false));
    }

    private static void anAdministratorFences() throws Exception {
        String topic = topic("one", 1);
        try (KafkaProducer<String, String> producer = producer("id")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "v")).get();
            admin.fenceProducers(List.of(name("id"))).all().get();
            attempt("commit", producer::commitTransaction);
        }
        say("committed: " + read(topic, 0, true));
    }

    private static void offsets() throws Exception {
        String in = topic("in", 1);
        String out = topic("out", 1);
        fill(in, 4);
        try (KafkaProducer<String, String> producer = producer("id");
                KafkaConsumer<String, String> consumer = consumer(true)) {
            consumer.subscribe(List.of(in));
            List<String> taken = new ArrayList<>();
            while (taken.size() < 4) {
                for (ConsumerRecord<String, String> each : consumer.poll(SECOND)) {
                    taken.add(each.value());
                }
            }
            TopicPartition place = new TopicPartition(in, 0);
            for (boolean commit : new boolean[] {false, true, false}) {
                long offset = commit ? 3 : 1;
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(out, "k", "to " + offset)).get();
                producer.sendOffsetsToTransaction(
                        Map.of(place, new OffsetAndMetadata(offset, "note")),
                        consumer.groupMetadata());
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                say("group: " + committed(place) + ", out: " + read(out, 0, true));
            }
        }
    }

    private static void offsetsOfAStaleMember() throws Exception {
        String in = topic("in", 1);
        fill(in, 1);
        TopicPartition place = new TopicPartition(in, 0);
        try (KafkaConsumer<String, String> consumer = consumer(true)) {
            consumer.subscribe(List.of(in));
            while (consumer.poll(SECOND).isEmpty()) {}
            ConsumerGroupMetadata now = consumer.groupMetadata();
            ConsumerGroupMetadata[] stale = {
                new ConsumerGroupMetadata(now.groupId(), now.generationId() - 1, now.memberId(), now.groupInstanceId()),
                new ConsumerGroupMetadata(now.groupId(), now.generationId(), "nobody", now.groupInstanceId()),
            };
            for (ConsumerGroupMetadata each : stale) {
                try (KafkaProducer<String, String> producer = producer("id")) {
                    producer.beginTransaction();
                    attempt(
                            "offsets",
                            () -> {
                                producer.sendOffsetsToTransaction(
                                        Map.of(place, new OffsetAndMetadata(1)), each);
                                producer.commitTransaction();
                            });
                    attempt("abort", producer::abortTransaction);
                    say("group: " + committed(place));
                }
            }
        }
    }

    private static void aTimeout() throws Exception {
        String topic = topic("one", 1);
        try (KafkaProducer<String, String> producer =
                producer("id", Map.of("transaction.timeout.ms", "1000"))) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "v")).get();
            await("CompleteAbort");
            attempt("commit", producer::commitTransaction);
        }
        say("committed: " + read(topic, 0, true));
    }

    private static void aTimeoutThatIsTooLong() throws Exception {
        attempt("init", () -> producer("id", Map.of("transaction.timeout.ms", "3600000")).close());
    }

    private static void noTransaction() throws Exception {
        String topic = topic("one", 1);
        // A producer that was misused waits a minute for its end, so these are closed at once.
        KafkaProducer<String, String> sends = producer("id");
        attempt("send", () -> sends.send(new ProducerRecord<>(topic, "k", "v")).get());
        sends.close(Duration.ZERO);
        KafkaProducer<String, String> commits = producer("id");
        attempt("commit", commits::commitTransaction);
        commits.close(Duration.ZERO);
        try (KafkaProducer<String, String> producer = producer("id")) {
            producer.beginTransaction();
            attempt("an empty commit", producer::commitTransaction);
            producer.beginTransaction();
            attempt("an empty abort", producer::abortTransaction);
        }
        say("uncommitted: " + read(topic, 0, false));
    }

    private static void aRecordThatIsTooLarge() throws Exception {
        NewTopic small = new NewTopic(name("small"), 1, (short) 1);
        admin.createTopics(List.of(small.configs(Map.of("max.message.bytes", "1000")))).all().get();
        try (KafkaProducer<String, String> producer = producer("id")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(small.name(), "k", "v")).get();
            String large = "x".repeat(2000);
            attempt("send", () -> producer.send(new ProducerRecord<>(small.name(), "k", large)).get());
            attempt("commit", producer::commitTransaction);
            attempt("abort", producer::abortTransaction);
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(small.name(), "k", "after it")).get();
            attempt("commit", producer::commitTransaction);
        }
        say("committed: " + read(small.name(), 0, true));
    }

    private static void lists() throws Exception {
        String topic = topic("two", 2);
        try (KafkaProducer<String, String> producer = producer("id")) {
            say("state: " + state(name("id")));
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "a")).get();
            producer.send(new ProducerRecord<>(topic, 1, "k", "a")).get();
            TransactionDescription open =
                    admin.describeTransactions(List.of(name("id"))).description(name("id")).get();
            say("open: " + open.state() + " " + partitions(open.topicPartitions())
                    + " timeout " + open.transactionTimeoutMs()
                    + " since " + open.transactionStartTimeMs().isPresent());
            say("producers: " + producers(topic));
            say("old ones: " + listed(new ListTransactionsOptions().filterOnDuration(3_600_000)));
            say("all: " + listed(new ListTransactionsOptions()));
            producer.commitTransaction();
            await("CompleteCommit");
            say("producers: " + producers(topic));
        }
        attempt("an unknown id", () ->
                admin.describeTransactions(List.of("nothing")).description("nothing").get());
    }

    private static void anAdministratorAborts() throws Exception {
        String topic = topic("one", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer("id")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "v")).get();
            ProducerState state = admin.describeProducers(List.of(place)).partitionResult(place).get()
                    .activeProducers().get(0);
            AbortTransactionSpec spec = new AbortTransactionSpec(
                    place, state.producerId(), (short) state.producerEpoch(),
                    state.coordinatorEpoch().orElse(0));
            attempt("abort by the administrator", () -> admin.abortTransaction(spec).all().get());
            say("producers: " + producers(topic));
            attempt("commit", producer::commitTransaction);
        }
        say("committed: " + read(topic, 0, true));
    }

    // -- the parts of scenarios --------------------------------------------------------------------

    private interface Action {
        void run() throws Exception;
    }

    /** Prints the outcome; of an error the first cause, which clients wrap by chance. */
    private static void attempt(String what, Action action) {
        try {
            action.run();
            say(what + ": done");
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            say(what + ": " + cause.getClass().getSimpleName());
        }
    }

    private static void say(String line) {
        OUT.println(scenario + ": " + line.replace(scenario + "-", ""));
    }

    private static String name(String word) {
        return scenario + "-" + word;
    }

    private static String topic(String word, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(name(word), partitions, (short) 1))).all().get();
        return name(word);
    }

    private static KafkaProducer<String, String> producer(String word) {
        return producer(word, Map.of());
    }

    private static KafkaProducer<String, String> producer(String word, Map<String, String> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name(word));
        settings.put("linger.ms", "0");
        settings.put("max.block.ms", "60000");
        KafkaProducer<String, String> made =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        try {
            made.initTransactions();
        } catch (RuntimeException error) {
            made.close();
            throw error;
        }
        return made;
    }

    private static KafkaConsumer<String, String> consumer(boolean committed) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", name("group"));
        settings.put("isolation.level", committed ? "read_committed" : "read_uncommitted");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static void fill(String topic, int count) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (KafkaProducer<String, String> plain =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int at = 0; at < count; at++) {
                plain.send(new ProducerRecord<>(topic, "k", "r" + at)).get();
            }
        }
    }

    /** Returns the values up to the end that a reader of this isolation sees. */
    private static List<String> read(String topic, int partition, boolean committed)
            throws Exception {
        awaitMarkers();
        TopicPartition place = new TopicPartition(topic, partition);
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(committed)) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                for (ConsumerRecord<String, String> each : consumer.poll(SECOND)) {
                    values.add(each.value());
                }
            }
        }
        return values;
    }

    private static String committed(TopicPartition place) {
        try (KafkaConsumer<String, String> consumer = consumer(true)) {
            OffsetAndMetadata found = consumer.committed(Set.of(place)).get(place);
            return found == null ? "none" : found.offset() + " " + found.metadata();
        }
    }

    /** Waits until no decided transaction lacks a marker: a commit returns before its markers. */
    private static void awaitMarkers() throws Exception {
        ListTransactionsOptions decided =
                new ListTransactionsOptions()
                        .filterStates(
                                List.of(
                                        TransactionState.PREPARE_COMMIT,
                                        TransactionState.PREPARE_ABORT));
        long end = System.nanoTime() + 60_000_000_000L;
        while (!admin.listTransactions(decided).all().get().isEmpty()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("a decided transaction lacks markers for 60 s");
            }
            Thread.sleep(20);
        }
    }

    private static void await(String state) throws Exception {
        while (!state(name("id")).equals(state)) {
            Thread.sleep(100);
        }
        say("state: " + state);
    }

    private static String state(String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get().state().toString();
    }

    private static String listed(ListTransactionsOptions options) throws Exception {
        Set<String> found = new TreeSet<>();
        for (TransactionListing each : admin.listTransactions(options).all().get()) {
            if (each.transactionalId().startsWith(scenario)) {
                found.add(each.transactionalId() + " " + each.state());
            }
        }
        return found.toString();
    }

    private static String producers(String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        List<String> found = new ArrayList<>();
        for (ProducerState each :
                admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers()) {
            found.add("sequence " + each.lastSequence() + " began at "
                    + each.currentTransactionStartOffset());
        }
        return found.toString();
    }

    private static String partitions(Collection<TopicPartition> places) {
        Set<String> found = new TreeSet<>();
        places.forEach(each -> found.add(each.toString()));
        return found.toString();
    }
}
