import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Names principals as Apache Kafka does. Each line of stdin has a question, and all is base64.
 *
 * `R rules name`: the principal of a name. `D certificate`: the subject of a certificate in DER.
 * The answer is `= text`, `none` (no rule applies), `invalid` (rules) or `fails` (a replacement).
 */
public class Principals {
    public static void main(String[] words) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            out.append(parts[0].equals("D") ? subject(bytes(parts[1]))
                : principal(text(parts[1]), text(parts[2]))).append('\n');
        }
        System.out.print(out);
    }

    private static String subject(byte[] certificate) throws Exception {
        X509Certificate parsed = (X509Certificate) CertificateFactory.getInstance("X.509")
            .generateCertificate(new ByteArrayInputStream(certificate));
        return shown(parsed.getSubjectX500Principal().getName());
    }

    private static String principal(String rules, String name) {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(rules);
        } catch (RuntimeException fault) {
            return "invalid";
        }
        try {
            return shown(mapper.getName(name));
        } catch (java.io.IOException none) {
            return "none";
        } catch (RuntimeException fault) {
            return "fails";
        }
    }

    private static String shown(String text) {
        return "= " + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] bytes(String written) {
        return Base64.getDecoder().decode(written);
    }

    private static String text(String written) {
        return new String(bytes(written), StandardCharsets.UTF_8);
    }
}
