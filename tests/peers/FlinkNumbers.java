import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Writes the numbers from 0 on to the topic "numbers" by KafkaSink, exactly once, on a cluster of
 * Flink in this process.
 *
 * <p>Arguments: the bootstrap address, how transactions are named, the directory of the
 * checkpoints, the checkpoint to begin with or "none", how many numbers, and how many in a second.
 */
public class FlinkNumbers {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true);

    public static void main(String[] words) throws Exception {
        Configuration settings = settings(new File(words[2]), words[3]);
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        DataGeneratorSource<String> numbers =
                new DataGeneratorSource<>(
                        String::valueOf,
                        Long.parseLong(words[4]),
                        RateLimiterStrategy.perSecond(Double.parseDouble(words[5])),
                        Types.STRING);
        flink.fromSource(numbers, WatermarkStrategy.noWatermarks(), "numbers")
                .uid("numbers")
                .sinkTo(sink(words[0], TransactionNamingStrategy.valueOf(words[1])))
                .uid("sink");
        flink.execute();
        OUT.println("finished");
    }

    private static KafkaSink<String> sink(String bootstrap, TransactionNamingStrategy naming) {
        return KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setRecordSerializer(
                        KafkaRecordSerializationSchema.builder()
                                .setTopic("numbers")
                                .setValueSerializationSchema(new SimpleStringSchema())
                                .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink")
                .setTransactionNamingStrategy(naming)
                .setProperty("transaction.timeout.ms", "60000")
                .build();
    }

    private static Configuration settings(File checkpoints, String first) {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "200ms");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", checkpoints.toURI().toString());
        settings.setString(
                "execution.checkpointing.externalized-checkpoint-retention",
                "RETAIN_ON_CANCELLATION");
        settings.setString("execution.checkpointing.num-retained", "3");
        settings.setString("execution.checkpointing.tolerable-failed-checkpoints", "1000");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500ms");
        if (!first.equals("none")) {
            settings.setString("execution.state-recovery.path", first);
        }
        return settings;
    }
}
