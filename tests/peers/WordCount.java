import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of the topic "lines" exactly once, and writes each new count to "counts".
 *
 * <p>Arguments: the bootstrap address, the directory of the state, and perhaps a properties file
 * with settings that replace these, and with the names of the topics as "input" and "output".
 * Prints a line for each restored partition of the changelog, and for each new state.
 */
public class WordCount {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true);

    public static void main(String[] words) throws Exception {
        Properties settings = settings(words[0], words[1]);
        if (words.length > 2) {
            try (FileInputStream in = new FileInputStream(words[2])) {
                settings.load(in);
            }
        }
        String input = settings.getProperty("input", "lines");
        String output = settings.getProperty("output", "counts");
        KafkaStreams streams = new KafkaStreams(topology(input, output).build(), settings);
        streams.setGlobalStateRestoreListener(new Restores());
        streams.setStateListener((now, before) -> OUT.println("state " + now));
        streams.setUncaughtExceptionHandler(
                error -> {
                    error.printStackTrace();
                    return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        new CountDownLatch(1).await();
    }

    private static StreamsBuilder topology(String input, String output) {
        StreamsBuilder builder = new StreamsBuilder();
        Map<String, String> changelog =
                Map.of("segment.bytes", "1048576", "min.cleanable.dirty.ratio", "0.01");
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(
                        Materialized.<String, Long>as(Stores.persistentKeyValueStore("words"))
                                .withKeySerde(Serdes.String())
                                .withValueSerde(Serdes.Long())
                                .withCachingDisabled()
                                .withLoggingEnabled(changelog))
                .toStream()
                .mapValues(String::valueOf)
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    private static Properties settings(String bootstrap, String directory) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, directory);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        return settings;
    }

    private static class Restores implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition place, String store, long start, long end) {}

        @Override
        public void onBatchRestored(TopicPartition place, String store, long end, long count) {}

        @Override
        public void onRestoreEnd(TopicPartition place, String store, long count) {
            OUT.println("restored " + place.partition() + " " + count);
        }
    }
}
