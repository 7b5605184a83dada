import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Apache Kafka's consumer with its default settings, in one process for all reads of a side, so that the first
 * read that counts runs compiled code. It reads whole partitions from the start without a group.
 *
 * <p>Arguments: port to listen on, bootstrap servers. Each line that arrives is a read: topic, partitions,
 * records, the lag at which it has caught up (-1: it reads up to the count of records), seconds at most. The
 * response is a line: records, bytes, seconds, 1 if it came to its end.
 */
public class ClusterReader {
    public static void main(String[] words) throws Exception {
        InetAddress loopback = InetAddress.getByName("127.0.0.1");
        try (ServerSocket listener = new ServerSocket(Integer.parseInt(words[0]), 1, loopback)) {
            try (Socket client = listener.accept()) {
                BufferedReader in = new BufferedReader(new InputStreamReader(client.getInputStream()));
                PrintStream out = new PrintStream(client.getOutputStream(), true);
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    out.println(new ClusterReader(words[1]).read(line.split(" ")));
                }
            }
        }
    }

    private final Properties settings = new Properties();
    private long records;
    private long bytes;

    private ClusterReader(String servers) {
        settings.put("bootstrap.servers", servers);
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
    }

    private String read(String[] asked) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int at = 0; at < Integer.parseInt(asked[1]); at++) {
            partitions.add(new TopicPartition(asked[0], at));
        }
        long wanted = Long.parseLong(asked[2]);
        long lag = Long.parseLong(asked[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            long began = System.nanoTime();
            long deadline = began + (long) (Double.parseDouble(asked[4]) * 1e9);
            long now = began;
            boolean ended = false;
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!ended && now < deadline) {
                count(consumer.poll(Duration.ofMillis(100)));
                now = System.nanoTime();
                ended = lag < 0 ? records >= wanted : caughtUp(consumer, partitions, lag);
            }
            return records + " " + bytes + " " + (now - began) / 1e9 + " " + (ended ? 1 : 0);
        }
    }

    private void count(ConsumerRecords<byte[], byte[]> polled) {
        for (ConsumerRecord<byte[], byte[]> record : polled) {
            records++;
            bytes += record.value().length;
        }
    }

    private static boolean caughtUp(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> partitions, long lag) {
        long behind = 0;
        for (TopicPartition partition : partitions) {
            if (consumer.currentLag(partition).isEmpty()) {
                return false;
            }
            behind += consumer.currentLag(partition).getAsLong();
        }
        return behind <= lag;
    }
}
