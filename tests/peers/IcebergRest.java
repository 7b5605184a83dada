import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Iceberg's own REST catalog: its servlet and adapter, on a loopback port. */
public class IcebergRest {
    /** Takes the port, then key=value settings of the catalog behind it. */
    public static void main(String[] words) throws Exception {
        Map<String, String> settings = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            int at = words[i].indexOf('=');
            settings.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
        var catalog = CatalogUtil.buildIcebergCatalog("rest", settings, new Configuration());
        var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])));
        var context = new ServletContextHandler();
        var servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
        context.addServlet(new ServletHolder(servlet), "/*");
        server.setHandler(context);
        server.start();
        System.out.println("ready");
        server.join();
    }
}
