import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers of small transactions: each has one record in every partition of the topic.
 *
 * <p>Arguments: bootstrap address, topic, partitions, producers, seconds. The load runs once, for half the time,
 * before it counts. Prints one JSON line: commits per second, and the time of a transaction from its begin to the
 * return of its commit.
 *
 * <p>A producer of protocol 2 may send EndTxn before its records: its Sender asks for incomplete batches before it
 * takes the lock under which it looks for an EndTxn, and a whole transaction may be sent and committed in between. The
 * coordinator has no open transaction then, and its INVALID_TXN_STATE ends the producer. Nothing was committed, so a
 * new producer goes on. The line has the number of these in all runs, and that of the commits that returned although
 * a record of theirs was not acknowledged.
 */
public class TransactionLoad {
    private static final byte[] VALUE = new byte[100];

    private final String bootstrap;
    private final String topic;
    private final int partitions;
    private final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
    private final AtomicInteger replaced = new AtomicInteger(); // producers, in all runs
    private final AtomicInteger early = new AtomicInteger(); // commits in front of records, in all runs
    private long allCommits; // of all runs

    private TransactionLoad(String bootstrap, String topic, int partitions) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.partitions = partitions;
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        TransactionLoad load = new TransactionLoad(words[0], words[1], Integer.parseInt(words[2]));
        int producers = Integer.parseInt(words[3]);
        double seconds = Double.parseDouble(words[4]);
        ExecutorService threads = Executors.newFixedThreadPool(producers, work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true); // an exception of a producer ends the program
            return thread;
        });
        load.open(threads, producers);
        load.run(threads, seconds / 2);
        out.println(new ObjectMapper().writeValueAsString(load.run(threads, seconds)));
        System.exit(0); // without closing the producers one by one
    }

    private void open(ExecutorService threads, int count) throws Exception {
        List<Future<?>> opened = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            KafkaProducer<byte[], byte[]> producer = producer(number);
            producers.add(producer);
            opened.add(threads.submit(producer::initTransactions));
        }
        for (Future<?> one : opened) {
            one.get();
        }
    }

    private KafkaProducer<byte[], byte[]> producer(int number) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", topic + "-" + number);
        settings.put("batch.size", 1024);
        settings.put("buffer.memory", 2 << 20);
        ByteArraySerializer plain = new ByteArraySerializer();
        return new KafkaProducer<>(settings, plain, plain);
    }

    private void replace(int number) {
        replaced.incrementAndGet();
        producers.get(number).close(Duration.ZERO);
        producers.set(number, producer(number));
        producers.get(number).initTransactions();
    }

    private Map<String, Object> run(ExecutorService threads, double seconds) throws Exception {
        CountDownLatch ready = new CountDownLatch(producers.size());
        List<Future<List<Long>>> running = new ArrayList<>();
        long started = System.nanoTime();
        for (int each = 0; each < producers.size(); each++) {
            int number = each;
            running.add(threads.submit(() -> {
                ready.countDown();
                ready.await();
                return transactions(number, System.nanoTime() + (long) (seconds * 1e9));
            }));
        }
        List<Long> took = new ArrayList<>();
        for (Future<List<Long>> one : running) {
            took.addAll(one.get());
        }
        double all = (System.nanoTime() - started) / 1e9;
        took.sort(null);
        allCommits += took.size();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("all_commits", allCommits);
        found.put("commits_per_s", took.size() / all);
        found.put("p50_ms", took.get(took.size() / 2) / 1e6);
        found.put("p99_ms", took.get((int) (took.size() * 0.99)) / 1e6);
        found.put("replaced_count", replaced.get());
        found.put("early_count", early.get());
        return found;
    }

    /** Returns the nanoseconds of each transaction that was committed; there is at least one. */
    private List<Long> transactions(int number, long end) {
        List<Long> took = new ArrayList<>();
        do {
            long started = System.nanoTime();
            try {
                commitOne(producers.get(number));
                took.add(System.nanoTime() - started);
            } catch (InvalidTxnStateException sentBeforeItsRecords) {
                replace(number);
            }
        } while (took.isEmpty() || System.nanoTime() < end);
        return took;
    }

    private void commitOne(KafkaProducer<byte[], byte[]> producer) {
        List<Future<RecordMetadata>> sent = new ArrayList<>(partitions);
        producer.beginTransaction();
        for (int partition = 0; partition < partitions; partition++) {
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, VALUE)));
        }
        producer.commitTransaction();
        if (!sent.stream().allMatch(Future::isDone)) {
            early.incrementAndGet();
        }
    }
}
