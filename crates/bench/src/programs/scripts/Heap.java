import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;

/** A map of records that are functions of their numbers. A request is a line of input, an answer a line of JSON. */
final class Heap {
    static final String[] WORDS = ("the order was left with a neighbour because nobody opened please call before delivery and ask for "
        + "size exchange wrong colour agreed refund customer parcel").split(" ");
    static final String[] NAMES = "Anna Boris Chiara David Elif Farid Greta Hugo Ines Jonas Keiko Luis Mira Nils Olga Pavel".split(" ");
    /** Bytes that a record takes, about; records for each that stays in use. */
    static final int EACH = 850, HOT_ONE_IN = 20;
    /** Time at work, out of so much, ns; units whose times go into a percentile, at most. */
    static final long BURST = 100_000_000L, PERIOD = 1_000_000_000L;
    static final int KEPT = 16384;

    record Item(int id, String name, String mail, String token, double balance, int[] orders, String notes) {
        boolean same(Item o) {
            return o != null && id == o.id && name.equals(o.name) && mail.equals(o.mail) && token.equals(o.token)
                && balance == o.balance && Arrays.equals(orders, o.orders) && notes.equals(o.notes);
        }
    }

    /** Random numbers, from the record's number alone. */
    static final class Numbers {
        long state;
        Numbers(int number) { state = number; }
        long next() { state = state * 6364136223846793005L + 1442695040888963407L; return state >>> 11; }
        int below(int bound) { return (int) (next() % bound); }
    }

    static Item make(int number) {
        Numbers random = new Numbers(number);
        String name = NAMES[random.below(16)];
        String mail = name.toLowerCase(Locale.ROOT) + "." + random.below(1000) + "@example.org";
        String token = Long.toHexString(random.next()) + Long.toHexString(random.next());
        int[] orders = new int[8];
        for (int i = 0; i < 8; i++) orders[i] = random.below(100_000);
        StringBuilder notes = new StringBuilder();
        for (int i = 0; i < 60; i++) notes.append(i == 0 ? "" : " ").append(WORDS[random.below(WORDS.length)]);
        return new Item(number, name, mail, token, random.below(1_000_000) / 100.0, orders, notes.toString());
    }

    final int count;
    final HashMap<Integer, Item> map = new HashMap<>();
    long total;

    /** Records that stay in use, in runs of so many that were made one after another. */
    final int inUse, run;

    Heap(long bytes, long together) {
        count = (int) Math.max(HOT_ONE_IN, bytes / EACH);
        run = (int) Math.max(1, Math.min(together, count / HOT_ONE_IN));
        inUse = count / (HOT_ONE_IN * run) * run;
        for (int number = 0; number < count; number++) map.put(number, make(number));
    }

    /** Looks at 256 records of those in use. */
    void unit(long turn) {
        for (int step = 0; step < 256; step++) {
            long at = (turn * 256 + step) * 7919 % inUse;
            Item found = map.get((int) (at / run * run * HOT_ONE_IN + at % run));
            total += found.id + found.notes.length();
        }
    }

    /** Works in bursts for so long. */
    String hot(double seconds) throws InterruptedException {
        long[] kept = new long[KEPT];
        long units = 0, busy = 0, end = System.nanoTime() + (long) (seconds * 1e9);
        for (;;) {
            long began = System.nanoTime(), until = Math.min(began + BURST, end), last = began;
            while (last < until) {
                unit(units);
                long after = System.nanoTime();
                kept[(int) (units++ % KEPT)] = after - last;
                last = after;
            }
            busy += last - began;
            if (last >= end) break;
            Thread.sleep(Math.max(0, Math.min(began + PERIOD, end) - System.nanoTime()) / 1_000_000);
        }
        int n = (int) Math.min(units, KEPT);
        Arrays.sort(kept, 0, n);
        long p99 = n == 0 ? 0 : kept[(int) Math.ceil(n * 0.99) - 1];
        return "{\"units\":" + units + ",\"busy_ns\":" + busy + ",\"p99_ns\":" + p99 + "}";
    }

    void spoil() {
        Item it = map.get(count / 2);
        map.put(count / 2, new Item(it.id, it.name, it.mail, it.token, it.balance + 1, it.orders, it.notes));
    }

    int verify() {
        int wrong = 0;
        for (int number = 0; number < count; number++) if (!make(number).same(map.get(number))) wrong++;
        return wrong;
    }

    public static void main(String[] arguments) throws Exception {
        Heap heap = new Heap(Long.parseLong(arguments[0]), Long.parseLong(arguments[1]));
        System.out.println("{\"items\":" + heap.count + "}");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = requests.readLine()) != null;) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "hot" -> System.out.println(heap.hot(Double.parseDouble(words[1])));
                case "spoil" -> { heap.spoil(); System.out.println("{}"); }
                case "collect" -> { System.gc(); System.out.println("{}"); }
                case "verify" -> System.out.println("{\"wrong\":" + heap.verify() + "}");
                default -> throw new IllegalArgumentException("not a request: " + line);
            }
        }
    }
}
