import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.LocalBookKeeper;

/**
 * Apache BookKeeper's LocalBookKeeper (ZooKeeper and bookies in one JVM) with a ZooKeeper port and
 * directories of our choice, which its own main does not take.
 *
 * <p>Arguments: ZooKeeper port, number of bookies, directory for everything.
 */
public class LocalCluster {
    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        int port = Integer.parseInt(words[0]);
        int bookies = Integer.parseInt(words[1]);
        File data = new File(words[2]);
        System.setProperty("zookeeper.4lw.commands.whitelist", "*");
        System.setProperty("zookeeper.admin.enableServer", "false");

        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://127.0.0.1:" + port + "/ledgers");
        conf.setAllowLoopback(true);
        conf.setListeningInterface("lo");
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setJournalDirName(new File(data, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(data, "ledgers").getPath()});

        File tree = new File(data, "zookeeper");
        tree.mkdirs();
        LocalBookKeeper.runZookeeper(1000, port, tree);
        LocalBookKeeper cluster = new LocalBookKeeper(
                bookies, conf, new File(data, "conf").getPath(), false, "", "127.0.0.1", port);
        cluster.start();
        out.println("ready");
        Thread.currentThread().join();
    }
}
