import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.ClientQuotaManager;
import org.apache.kafka.server.quota.ControllerMutationQuotaManager;
import org.apache.kafka.server.quota.QuotaType;
import org.apache.kafka.server.quota.QuotaUtils;

/** Answers each line of a drawn history with what Kafka's classes for quotas return. */
public final class QuotaHistories {
    private static Metrics metrics = new Metrics();
    private static Sensor sensor;
    private static KafkaMetric measured;
    private static MetricConfig config;
    private static ClientQuotaManager manager;
    private static int made = 0;

    private static MetricConfig configOf(int samples, long seconds, double bound) {
        return new MetricConfig()
            .timeWindow(seconds, java.util.concurrent.TimeUnit.SECONDS)
            .samples(samples)
            .quota(new Quota(bound, true));
    }

    private static void begin(String[] words, boolean isBucket) {
        config = configOf(Integer.parseInt(words[1]), Long.parseLong(words[2]), bound(words[3]));
        made += 1;
        sensor = metrics.sensor("sensor-" + made);
        MetricName name = metrics.metricName("metric-" + made, "quotas");
        sensor.add(name, isBucket ? new TokenBucket() : new Rate(), config);
        measured = metrics.metric(name);
    }

    private static double bound(String text) {
        return Double.parseDouble(text);
    }

    private static String recorded(long now, double value, boolean checks) {
        long throttled = 0;
        try {
            sensor.record(value, now, checks);
        } catch (QuotaViolationException e) {
            throttled = QuotaUtils.throttleTime(e, now);
        }
        return throttled + " " + Double.toHexString(measured.measurable().measure(measured.config(), now));
    }

    private static String taken(long now, double value, boolean strict) {
        long throttled = 0;
        try {
            if (strict) {
                sensor.checkQuotas(now);
                sensor.record(value, now, false);
            } else {
                sensor.record(value, now, true);
            }
        } catch (QuotaViolationException e) {
            throttled = ControllerMutationQuotaManager.throttleTimeMs(e);
        }
        return throttled + " " + Double.toHexString(measured.measurable().measure(measured.config(), now));
    }

    private static Optional<ClientQuotaEntity.ConfigEntity> user(String name) {
        if (name.equals("-")) return Optional.empty();
        if (name.equals("*")) return Optional.of(ClientQuotaManager.DEFAULT_USER_ENTITY);
        return Optional.of(new ClientQuotaManager.UserEntity(name));
    }

    private static Optional<ClientQuotaEntity.ConfigEntity> client(String name) {
        if (name.equals("-")) return Optional.empty();
        if (name.equals("*")) return Optional.of(ClientQuotaManager.DEFAULT_USER_CLIENT_ID);
        return Optional.of(new ClientQuotaManager.ClientIdEntity(name));
    }

    private static void limit(String[] words) {
        Optional<Quota> quota = words[3].equals("-")
            ? Optional.empty()
            : Optional.of(new Quota(bound(words[3]), true));
        manager.updateQuota(user(words[1]), client(words[2]), quota);
    }

    private static String found(String[] words) throws Exception {
        KafkaPrincipal principal = new KafkaPrincipal(KafkaPrincipal.USER_TYPE, words[1]);
        String client = words[2].equals("null") ? null : words[2].equals("empty") ? "" : words[2];
        double bound = manager.quota(principal, client).bound();
        if (bound == Long.MAX_VALUE) return "none";
        Session session = new Session(principal, InetAddress.getLoopbackAddress());
        Map<String, String> tags = manager.getOrCreateQuotaSensors(session, client).metricTags();
        String shared = tags.get(ClientQuotaManager.USER_TAG);
        String id = tags.get(ClientQuotaManager.CLIENT_ID_TAG);
        return bound + " " + (shared.isEmpty() ? "-" : shared) + " " + (id.isEmpty() ? "-" : id);
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "rate": begin(words, false); return "";
            case "bucket": begin(words, true); return "";
            case "bound":
                measured.config(configOf(config.samples(), config.timeWindowMs() / 1000, bound(words[1])));
                return "";
            case "record": return recorded(Long.parseLong(words[1]), bound(words[2]), true);
            case "note": return recorded(Long.parseLong(words[1]), bound(words[2]), false);
            case "strict": return taken(Long.parseLong(words[1]), bound(words[2]), true);
            case "permissive": return taken(Long.parseLong(words[1]), bound(words[2]), false);
            case "limits":
                if (manager != null) manager.shutdown();
                metrics = new Metrics();
                manager = new ClientQuotaManager(
                    new ClientQuotaManagerConfig(), metrics, QuotaType.PRODUCE,
                    org.apache.kafka.common.utils.Time.SYSTEM, "");
                return "";
            case "limit": limit(words); return "";
            case "find": return found(words);
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split(" ")));
        }
        System.out.flush();
        System.exit(0);
    }
}
