import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache BookKeeper's client under load: ledgers of E 3, Qw 3, Qa 2 with CRC32C digests.
 *
 * <p>Arguments: metadata service URI, entry bytes, seconds of each part, adds in flight, and the parts: "adds"
 * (asynchronous), "single" (one add at a time), "reads" (of a ledger added before). Each part runs once before
 * it counts. One JSON line tells. It is the twin of tests/bench/ledger_load.py.
 */
public class BookKeeperLoad {
    private static final byte[] PASSWORD = new byte[0];
    private static final int RANGE = 16; // entries that one read asks for
    private static final int RANGES = 4; // such reads in flight

    private final BookKeeper client;
    private final byte[] payload;
    private final int inFlight;
    private LedgerHandle written; // what is read

    private BookKeeperLoad(BookKeeper client, int entryBytes, int inFlight) {
        this.client = client;
        this.payload = new byte[entryBytes];
        new Random(1).nextBytes(payload);
        this.inFlight = inFlight;
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        int entryBytes = Integer.parseInt(words[1]);
        double seconds = Double.parseDouble(words[2]);
        ClientConfiguration conf = new ClientConfiguration().setMetadataServiceUri(words[0]);
        conf.setThrottleValue(0); // else the client itself stops at 5,000 requests a second
        try (BookKeeper client = new BookKeeper(conf)) {
            BookKeeperLoad load = new BookKeeperLoad(client, entryBytes, Integer.parseInt(words[3]));
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("entry_bytes", entryBytes);
            for (String part : words[4].split(",")) {
                load.run(part, seconds / 2, new LinkedHashMap<>());
                load.run(part, seconds, said);
            }
            out.println(new ObjectMapper().writeValueAsString(said));
        }
        System.exit(0);
    }

    private LedgerHandle create() throws Exception {
        return client.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
    }

    private void run(String part, double seconds, Map<String, Object> said) throws Exception {
        switch (part) {
            case "adds":
                adds(seconds, said);
                break;
            case "single":
                single(seconds, said);
                break;
            case "reads":
                if (written == null) {
                    written = adds(seconds, new LinkedHashMap<>());
                }
                reads(written.getId(), seconds, said);
                break;
            default:
                throw new IllegalArgumentException(part);
        }
    }

    private LedgerHandle adds(double seconds, Map<String, Object> said) throws Exception {
        LedgerHandle ledger = create();
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        long started = System.nanoTime();
        long ends = started + (long) (seconds * 1e9);
        long added = 0;
        while (System.nanoTime() < ends) {
            room.acquire();
            ledger.asyncAddEntry(payload, (code, handle, entry, ctx) -> {
                if (code != BKException.Code.OK) {
                    failed.incrementAndGet();
                }
                room.release();
            }, null);
            added++;
        }
        room.acquire(inFlight);
        double took = (System.nanoTime() - started) / 1e9;
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " adds failed");
        }
        ledger.close();
        said.put("adds", added);
        said.put("adds_per_s", added / took);
        return ledger;
    }

    private void single(double seconds, Map<String, Object> said) throws Exception {
        LedgerHandle ledger = create();
        long[] took = new long[1 << 20];
        int count = 0;
        long ends = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < ends && count < took.length) {
            long started = System.nanoTime();
            ledger.addEntry(payload);
            took[count++] = System.nanoTime() - started;
        }
        ledger.close();
        long[] sorted = Arrays.copyOf(took, count);
        Arrays.sort(sorted);
        said.put("single_adds", count);
        said.put("single_ms_mean", Arrays.stream(sorted).average().orElse(0) / 1e6);
        said.put("single_ms_p50", sorted[count / 2] / 1e6);
        said.put("single_ms_p99", sorted[(int) (count * 0.99)] / 1e6);
    }

    /** Entries in order, from the first to the last and again, some ranges in flight. */
    private void reads(long id, double seconds, Map<String, Object> said) throws Exception {
        LedgerHandle ledger = client.openLedger(id, BookKeeper.DigestType.CRC32C, PASSWORD);
        long last = ledger.getLastAddConfirmed();
        Semaphore room = new Semaphore(RANGES);
        AtomicInteger failed = new AtomicInteger();
        AtomicLong read = new AtomicLong();
        long started = System.nanoTime();
        long ends = started + (long) (seconds * 1e9);
        long next = 0;
        while (System.nanoTime() < ends) {
            room.acquire();
            long end = Math.min(next + RANGE - 1, last);
            ledger.asyncReadEntries(next, end, (code, handle, entries, ctx) -> {
                read.addAndGet(count(code, entries, failed));
                room.release();
            }, null);
            next = end == last ? 0 : end + 1;
        }
        room.acquire(RANGES);
        double took = (System.nanoTime() - started) / 1e9;
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " reads failed");
        }
        ledger.close();
        said.put("reads", read.get());
        said.put("reads_per_s", read.get() / took);
    }

    private int count(int code, Enumeration<LedgerEntry> entries, AtomicInteger failed) {
        int count = 0;
        while (code == BKException.Code.OK && entries.hasMoreElements()) {
            if (entries.nextElement().getEntry().length != payload.length) {
                failed.incrementAndGet();
            }
            count++;
        }
        if (count == 0) {
            failed.incrementAndGet();
        }
        return count;
    }
}
