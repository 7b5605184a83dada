import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/**
 * Loads each file of stdin, and writes its properties to stdout in the order of their lines.
 *
 * A file is its length and its bytes. The answer is the number of texts, or -1 if Java refuses the
 * file, and the texts: keys and values in turn, each its length and its UTF-16 units.
 */
public class LoadProperties {
    static class Recorded extends Properties {
        final List<String> texts = new ArrayList<>();

        @Override
        public synchronized Object put(Object key, Object value) {
            texts.add((String) key);
            texts.add((String) value);
            return super.put(key, value);
        }
    }

    public static void main(String[] words) throws IOException {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(new java.io.BufferedOutputStream(System.out));
        int files = in.readInt();
        for (int file = 0; file < files; file++) {
            byte[] content = in.readNBytes(in.readInt());
            Recorded found = new Recorded();
            try {
                found.load(new ByteArrayInputStream(content));
            } catch (IllegalArgumentException refused) {
                out.writeInt(-1);
                continue;
            }
            out.writeInt(found.texts.size());
            for (String text : found.texts) {
                out.writeInt(text.length());
                out.writeChars(text);
            }
        }
        out.flush();
    }
}
