import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer that does what it reads, a line at a time, and prints a line for each.
 *
 * <p>Arguments: the bootstrap address, a topic, a transactional id, and how long a request may take.
 * Commands: begin, send PARTITION VALUE, commit, abort. Answers: ok, with an offset after a send, or
 * the name of the error.
 */
public class TransactionSteps {
    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", words[0]);
        settings.put("transactional.id", words[2]);
        settings.put("request.timeout.ms", words[3]);
        settings.put("linger.ms", "0");
        settings.put("reconnect.backoff.ms", "20");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            out.println("ok");
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                try {
                    out.println("ok" + step(producer, words[1], line.split(" ")));
                } catch (Exception error) {
                    Throwable cause = error;
                    while (cause.getCause() != null) {
                        cause = cause.getCause();
                    }
                    out.println(cause.getClass().getSimpleName());
                }
            }
        }
    }

    private static String step(
            KafkaProducer<String, String> producer, String topic, String[] words) throws Exception {
        switch (words[0]) {
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "send" -> {
                int partition = Integer.parseInt(words[1]);
                return " " + producer.send(new ProducerRecord<>(topic, partition, "k", words[2]))
                        .get()
                        .offset();
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return "";
    }
}
