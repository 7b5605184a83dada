import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.discover.ZKRegistrationManager;
import org.apache.bookkeeper.meta.LedgerAuditorManager;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.meta.zk.ZKMetadataClientDriver;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.DataFormats.LedgerMetadataFormat;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.ByteBufList;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/**
 * Apache BookKeeper's own classes, asked by one JSON object a line; each is answered by one line.
 *
 * <p>{"do": command, "root": where "/ledgers" lies, ...}; the answer is {"is": ...} or {"error": ...}.
 */
public class Interop {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final int WAIT_S = 20;

    private final String servers;
    private final ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor();
    private final Map<String, Cluster> clusters = new HashMap<>();

    /** One /ledgers tree, seen as a client and as a bookie see it. */
    private final class Cluster {
        final ServerConfiguration conf = new ServerConfiguration();
        final ZKMetadataClientDriver driver;
        final ZooKeeper zk;
        final ZKRegistrationManager registrations;
        LedgerManager ledgers;
        LedgerIdGenerator ids;
        LedgerUnderreplicationManager missing;
        LedgerAuditorManager auditors;

        Cluster(String root) throws Exception {
            String uri = "zk+hierarchical://" + servers + root + "/ledgers";
            ClientConfiguration clientConf = new ClientConfiguration().setMetadataServiceUri(uri);
            conf.setMetadataServiceUri(uri);
            driver = (ZKMetadataClientDriver) MetadataDrivers.getClientDriver(URI.create(uri));
            driver.initialize(clientConf, executor, NullStatsLogger.INSTANCE, Optional.empty());
            zk = driver.getZk();
            registrations = new ZKRegistrationManager(conf, zk);
        }

        LedgerManagerFactory factory() throws Exception {
            return driver.getLedgerManagerFactory();
        }

        LedgerManager ledgers() throws Exception {
            if (ledgers == null) {
                ledgers = factory().newLedgerManager();
            }
            return ledgers;
        }

        LedgerUnderreplicationManager missing() throws Exception {
            if (missing == null) {
                missing = factory().newLedgerUnderreplicationManager();
            }
            return missing;
        }
    }

    private Interop(String servers) {
        this.servers = servers;
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        Interop interop = new Interop(words[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("is", JSON.valueToTree(interop.answer(JSON.readTree(line))));
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
            out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private static <T> T wait(CompletableFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    private Cluster cluster(JsonNode ask) throws Exception {
        String root = ask.get("root").asText();
        if (!clusters.containsKey(root)) {
            clusters.put(root, new Cluster(root));
        }
        return clusters.get(root);
    }

    private Object answer(JsonNode ask) throws Exception {
        String command = ask.get("do").asText();
        int dot = command.indexOf('.');
        switch (command.substring(0, dot)) {
            case "cluster":
                return clusterAnswer(command.substring(dot + 1), ask);
            case "metadata":
                return metadataAnswer(command.substring(dot + 1), ask);
            case "cookie":
                return cookieAnswer(command.substring(dot + 1), ask);
            case "bookie":
                return bookieAnswer(command.substring(dot + 1), ask);
            case "entry":
                return entryAnswer(command.substring(dot + 1), ask);
            case "missing":
                return missingAnswer(command.substring(dot + 1), ask);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private Object clusterAnswer(String command, JsonNode ask) throws Exception {
        Cluster cluster = cluster(ask);
        switch (command) {
            case "mkdir":
                try {
                    cluster.zk.create(ask.get("root").asText(), new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                } catch (KeeperException.NodeExistsException exists) {
                    return false;
                }
                return true;
            case "init":
                return cluster.registrations.initNewCluster();
            case "instance":
                return cluster.registrations.getClusterInstanceId();
            case "factory":
                return cluster.factory().getClass().getName();
            case "layout":
                return cluster.driver.getLayoutManager().readLedgerLayout().toString();
            case "ids":
                return ids(cluster, ask.get("count").asInt());
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static List<Long> ids(Cluster cluster, int count) throws Exception {
        if (cluster.ids == null) {
            cluster.ids = cluster.factory().newLedgerIdGenerator();
        }
        List<Long> ids = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            CompletableFuture<Long> id = new CompletableFuture<>();
            cluster.ids.generateLedgerId((rc, result) -> {
                if (rc == 0) {
                    id.complete(result);
                } else {
                    id.completeExceptionally(new IllegalStateException("rc " + rc));
                }
            });
            ids.add(wait(id));
        }
        return ids;
    }

    private Object metadataAnswer(String command, JsonNode ask) throws Exception {
        LedgerMetadataSerDe serializer = new LedgerMetadataSerDe();
        switch (command) {
            case "parse":
                byte[] data = HEX.parseHex(ask.get("hex").asText());
                return shown(serializer.parseConfig(data, ask.get("ledger").asLong(), Optional.empty()));
            case "serialize":
                return HEX.formatHex(serializer.serialize(built(ask)));
            case "read":
                return shown(wait(cluster(ask).ledgers().readLedgerMetadata(ask.get("ledger").asLong())).getValue());
            case "create":
                wait(cluster(ask).ledgers().createLedgerMetadata(ask.get("ledger").asLong(), built(ask)));
                return true;
            case "close":
                LedgerManager ledgers = cluster(ask).ledgers();
                Versioned<LedgerMetadata> read = wait(ledgers.readLedgerMetadata(ask.get("ledger").asLong()));
                LedgerMetadata closed = LedgerMetadataBuilder.from(read.getValue()).withClosedState()
                        .withLastEntryId(ask.get("last").asLong()).withLength(ask.get("length").asLong()).build();
                return shown(wait(ledgers.writeLedgerMetadata(closed.getLedgerId(), closed, read.getVersion())).getValue());
            case "list":
                Set<Long> all = new TreeSet<>();
                LedgerManager.LedgerRangeIterator ranges = cluster(ask).ledgers().getLedgerRanges(0);
                while (ranges.hasNext()) {
                    all.addAll(ranges.next().getLedgers());
                }
                return all;
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static LedgerMetadata built(JsonNode ask) {
        LedgerMetadataBuilder builder = LedgerMetadataBuilder.create()
                .withId(ask.get("ledger").asLong())
                .withMetadataFormatVersion(ask.get("format").asInt())
                .withEnsembleSize(ask.get("ensemble_size").asInt())
                .withWriteQuorumSize(ask.get("write_quorum").asInt())
                .withAckQuorumSize(ask.get("ack_quorum").asInt());
        for (JsonNode fragment : ask.get("fragments")) {
            List<BookieId> bookies = new ArrayList<>();
            fragment.get(1).forEach(bookie -> bookies.add(BookieId.parse(bookie.asText())));
            builder.newEnsembleEntry(fragment.get(0).asLong(), bookies);
        }
        if (ask.hasNonNull("digest_type")) {
            builder.withDigestType(DigestType.valueOf(ask.get("digest_type").asText()));
            builder.withPassword(HEX.parseHex(ask.get("password").asText()));
        }
        if (ask.hasNonNull("created_ms")) {
            builder.withCreationTime(ask.get("created_ms").asLong()).storingCreationTime(true);
        }
        if (ask.hasNonNull("custom")) {
            Map<String, byte[]> custom = new HashMap<>();
            ask.get("custom").fields().forEachRemaining(
                    one -> custom.put(one.getKey(), HEX.parseHex(one.getValue().asText())));
            builder.withCustomMetadata(custom);
        }
        if (ask.hasNonNull("token")) {
            builder.withCToken(ask.get("token").asLong());
        }
        switch (ask.get("state").asText()) {
            case "CLOSED":
                builder.withClosedState().withLastEntryId(ask.get("last_entry").asLong())
                        .withLength(ask.get("length").asLong());
                break;
            case "IN_RECOVERY":
                builder.withInRecoveryState();
                break;
            default:
                break;
        }
        return builder.build();
    }

    private static ObjectNode shown(LedgerMetadata metadata) {
        ObjectNode node = JSON.createObjectNode();
        node.put("ledger", metadata.getLedgerId());
        node.put("format", metadata.getMetadataFormatVersion());
        node.put("ensemble_size", metadata.getEnsembleSize());
        node.put("write_quorum", metadata.getWriteQuorumSize());
        node.put("ack_quorum", metadata.getAckQuorumSize());
        node.put("state", metadata.getState().toString());
        node.put("last_entry", metadata.getLastEntryId());
        node.put("length", metadata.getLength());
        if (metadata.hasPassword()) {
            node.put("digest_type", metadata.getDigestType().toString());
            node.put("password", HEX.formatHex(metadata.getPassword()));
        }
        node.put("created_ms", metadata.getCtime());
        node.put("token", metadata.getCToken());
        ObjectNode custom = node.putObject("custom");
        new TreeMap<>(metadata.getCustomMetadata()).forEach((key, value) -> custom.put(key, HEX.formatHex(value)));
        ArrayNode fragments = node.putArray("fragments");
        metadata.getAllEnsembles().forEach((first, bookies) -> {
            ArrayNode fragment = fragments.addArray();
            fragment.add(first);
            ArrayNode members = fragment.addArray();
            bookies.forEach(bookie -> members.add(bookie.toString()));
        });
        return node;
    }

    private Object cookieAnswer(String command, JsonNode ask) throws Exception {
        switch (command) {
            case "write":
                BookieId bookie = BookieId.parse(ask.get("bookie_host").asText());
                byte[] data = cookie(ask).toString().getBytes("UTF-8");
                cluster(ask).registrations.writeCookie(bookie, new Versioned<>(data, Version.NEW));
                return true;
            case "verify": // raises when any field differs
                BookieId id = BookieId.parse(ask.get("bookie_host").asText());
                Versioned<Cookie> read = Cookie.readFromRegistrationManager(cluster(ask).registrations, id);
                read.getValue().verify(cookie(ask));
                return ((LongVersion) read.getVersion()).getLongVersion();
            case "parse":
                return Cookie.parseFromBytes(HEX.parseHex(ask.get("hex").asText())).toString();
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static Cookie cookie(JsonNode ask) {
        Cookie.Builder builder = Cookie.newBuilder()
                .setLayoutVersion(ask.path("layout").asInt(5))
                .setBookieId(ask.get("bookie_host").asText())
                .setJournalDirs(ask.get("journal_dir").asText())
                .setLedgerDirs(Cookie.encodeDirPaths(words(ask.get("ledger_dirs"))));
        if (!ask.get("instance_id").asText().isEmpty()) {
            builder.setInstanceId(ask.get("instance_id").asText());
        }
        if (ask.get("index_dirs").size() > 0) {
            builder.setIndexDirs(Cookie.encodeDirPaths(words(ask.get("index_dirs"))));
        }
        return builder.build();
    }

    private static String[] words(JsonNode array) {
        List<String> words = new ArrayList<>();
        array.forEach(one -> words.add(one.asText()));
        return words.toArray(new String[0]);
    }

    private Object bookieAnswer(String command, JsonNode ask) throws Exception {
        Cluster cluster = cluster(ask);
        RegistrationClient client = cluster.driver.getRegistrationClient();
        switch (command) {
            case "writable":
                return names(wait(client.getWritableBookies()).getValue());
            case "readonly":
                return names(wait(client.getReadOnlyBookies()).getValue());
            case "all":
                return names(wait(client.getAllBookies()).getValue());
            case "info":
                return wait(client.getBookieServiceInfo(BookieId.parse(ask.get("bookie").asText()))).getValue();
            case "registered":
                return cluster.registrations.isBookieRegistered(BookieId.parse(ask.get("bookie").asText()));
            case "register":
                cluster.registrations.registerBookie(BookieId.parse(ask.get("bookie").asText()),
                        ask.get("read_only").asBoolean(), JSON.treeToValue(ask.get("info"), BookieServiceInfo.class));
                return true;
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static Set<String> names(Set<BookieId> bookies) {
        Set<String> names = new TreeSet<>();
        bookies.forEach(bookie -> names.add(bookie.toString()));
        return names;
    }

    private Object entryAnswer(String command, JsonNode ask) throws Exception {
        byte[] password = HEX.parseHex(ask.get("password").asText());
        byte[] key = DigestManager.generateMasterKey(password);
        if (command.equals("key")) {
            return HEX.formatHex(key);
        }
        long ledger = ask.get("ledger").asLong();
        DigestManager digests = DigestManager.instantiate(ledger, password,
                LedgerMetadataFormat.DigestType.valueOf(ask.get("digest_type").asText()),
                ByteBufAllocator.DEFAULT, false);
        switch (command) {
            case "pack":
                ByteBuf payload = Unpooled.wrappedBuffer(HEX.parseHex(ask.get("payload").asText()));
                ByteBufList packed = (ByteBufList) digests.computeDigestAndPackageForSending(
                        ask.get("entry").asLong(), ask.get("lac").asLong(), ask.get("length").asLong(), payload, key, 0);
                return HEX.formatHex(packed.toArray());
            case "unpack":
                ByteBuf stored = Unpooled.wrappedBuffer(HEX.parseHex(ask.get("hex").asText()));
                ByteBuf read = digests.verifyDigestAndReturnData(ask.get("entry").asLong(), stored.duplicate());
                byte[] found = new byte[read.readableBytes()];
                read.readBytes(found);
                DigestManager.RecoveryData recovery = digests.verifyDigestAndReturnLastConfirmed(stored.duplicate());
                return Map.of("payload", HEX.formatHex(found),
                        "lac", recovery.getLastAddConfirmed(), "length", recovery.getLength());
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private Object missingAnswer(String command, JsonNode ask) throws Exception {
        Cluster cluster = cluster(ask);
        LedgerUnderreplicationManager missing = cluster.missing();
        switch (command) {
            case "mark":
                wait(missing.markLedgerUnderreplicatedAsync(ask.get("ledger").asLong(), List.of(words(ask.get("replicas")))));
                return true;
            case "list":
                Map<Long, List<String>> marked = new TreeMap<>();
                Iterator<UnderreplicatedLedger> all = missing.listLedgersToRereplicate(null);
                while (all.hasNext()) {
                    UnderreplicatedLedger one = all.next();
                    marked.put(one.getLedgerId(), one.getReplicaList());
                }
                return marked;
            case "ctime":
                return missing.getLedgerUnreplicationInfo(ask.get("ledger").asLong()).getCtime();
            case "take": // -1: nothing is left to be taken
                return missing.pollLedgerToRereplicate();
            case "locked":
                return missing.isLedgerBeingReplicated(ask.get("ledger").asLong());
            case "worker":
                return missing.getReplicationWorkerIdRereplicatingLedger(ask.get("ledger").asLong());
            case "done":
                missing.markLedgerReplicated(ask.get("ledger").asLong());
                return true;
            case "disable":
                missing.disableLedgerReplication();
                return true;
            case "enabled":
                return missing.isLedgerReplicationEnabled();
            case "delay":
                return missing.getLostBookieRecoveryDelay();
            case "vote":
                return elected(cluster, ask.get("bookie").asText(), ask.get("wait_ms").asLong());
            case "auditor":
                BookieId auditor = auditors(cluster).getCurrentAuditor();
                return auditor == null ? null : auditor.toString();
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private LedgerAuditorManager auditors(Cluster cluster) throws Exception {
        if (cluster.auditors == null) {
            cluster.auditors = cluster.factory().newLedgerAuditorManager();
        }
        return cluster.auditors;
    }

    /** True once elected; waits in the background otherwise. */
    private boolean elected(Cluster cluster, String bookie, long waitMs) throws Exception {
        LedgerAuditorManager auditors = auditors(cluster);
        CompletableFuture<Void> elected = CompletableFuture.runAsync(() -> {
            try {
                auditors.tryToBecomeAuditor(bookie, event -> { });
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        try {
            elected.get(waitMs, TimeUnit.MILLISECONDS);
            return true;
        } catch (java.util.concurrent.TimeoutException waiting) {
            return false;
        }
    }
}
