import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Runs Apache Kafka's assignors. Each line of stdin is one group: the assignor, whether all members
 * subscribe alike, the topics (two halves of the id, partitions), and the members (id, instance id
 * or -, numbers of topics, and the assignment before). Each line of stdout is the assignment after.
 * With a number as argument, each group is assigned so often, and its line has two times in
 * nanoseconds: of the first time, and the median of the last half.
 */
public class Assignors {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(assign(new Scanner(line), args.length == 0 ? 0 : Integer.parseInt(args[0])));
        }
    }

    private static String assign(Scanner words, int times) {
        ConsumerGroupPartitionAssignor assignor =
            words.next().equals("range") ? new RangeAssignor() : new UniformAssignor();
        boolean alike = words.nextBoolean();
        List<Uuid> topics = new ArrayList<>();
        Map<Uuid, Integer> counts = new HashMap<>();
        for (int left = words.nextInt(); left > 0; left--) {
            Uuid topic = new Uuid(words.nextLong(), words.nextLong());
            topics.add(topic);
            counts.put(topic, words.nextInt());
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        List<String> order = new ArrayList<>();
        for (int left = words.nextInt(); left > 0; left--) {
            String name = words.next();
            String instance = words.next();
            Set<Uuid> subscribed = new HashSet<>();
            for (int each = words.nextInt(); each > 0; each--) {
                subscribed.add(topics.get(words.nextInt()));
            }
            Map<Uuid, Set<Integer>> target = new HashMap<>();
            for (int each = words.nextInt(); each > 0; each--) {
                Uuid topic = topics.get(words.nextInt());
                List<Integer> partitions = new ArrayList<>();
                for (int some = words.nextInt(); some > 0; some--) {
                    int partition = words.nextInt();
                    partitions.add(partition);
                    inverted.computeIfAbsent(topic, __ -> new HashMap<>()).put(partition, name);
                }
                target.put(topic, new HashSet<>(partitions));
            }
            order.add(name);
            members.put(name, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(),
                instance.equals("-") ? Optional.empty() : Optional.of(instance),
                subscribed,
                new Assignment(target)
            ));
        }
        GroupSpecImpl spec = new GroupSpecImpl(
            members, alike ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS, inverted);
        if (times > 0) {
            return times(assignor, spec, describer(counts), times);
        }
        return shown(order, topics, assignor.assign(spec, describer(counts)));
    }

    private static String times(
        ConsumerGroupPartitionAssignor assignor, GroupSpecImpl spec, SubscribedTopicDescriber topics, int times
    ) {
        List<Long> took = new ArrayList<>();
        for (int done = 0; done < times; done++) {
            long begun = System.nanoTime();
            assignor.assign(spec, topics);
            took.add(System.nanoTime() - begun);
        }
        List<Long> last = new ArrayList<>(took.subList(times / 2, times));
        java.util.Collections.sort(last);
        return took.get(0) + " " + last.get(last.size() / 2);
    }

    private static SubscribedTopicDescriber describer(Map<Uuid, Integer> counts) {
        return new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topicId) {
                return counts.getOrDefault(topicId, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topicId, int partition) {
                return Set.of();
            }
        };
    }

    private static String shown(List<String> order, List<Uuid> topics, GroupAssignment found) {
        StringBuilder text = new StringBuilder("[");
        for (String name : order) {
            text.append(text.length() > 1 ? "," : "").append("{");
            if (found.members().containsKey(name)) {
                Map<Integer, Set<Integer>> own = new TreeMap<>();
                found.members().get(name).partitions().forEach((topic, partitions) ->
                    own.put(topics.indexOf(topic), new TreeSet<>(partitions)));
                String inner = own.toString().replace("=", ":").replaceAll("(\\d+):", "\"$1\":");
                text.append(inner, 1, inner.length() - 1);
            }
            text.append("}");
        }
        return text.append("]").toString();
    }
}
