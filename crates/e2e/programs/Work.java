import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

/** Builds objects in three threads, lets them lie idle, and digests them before and after collections. */
public class Work {
    record Item(int id, long token, String text, int[] numbers) {}

    static List<Item> build(long seed, int count) {
        List<Item> out = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            seed = seed * 6364136223846793005L + 1442695040888963407L;
            int[] numbers = new int[(int) (seed >>> 58)];
            Arrays.fill(numbers, (int) (seed >>> 20));
            out.add(new Item(i, seed, "text ".repeat((int) (seed >>> 61)) + i, numbers));
        }
        return out;
    }

    static String digest(List<Item> items) throws Exception {
        MessageDigest sum = MessageDigest.getInstance("SHA-256");
        for (Item item : items)
            sum.update((item.id + ":" + item.token + item.text + Arrays.toString(item.numbers)).getBytes());
        return HexFormat.of().formatHex(sum.digest());
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[0]);
        ExecutorService pool = Executors.newFixedThreadPool(3);
        List<Future<List<Item>>> parts = new ArrayList<>();
        for (int seed = 1; seed <= 3; seed++) {
            int own = seed;
            parts.add(pool.submit(() -> build(own, count)));
        }
        for (Future<List<Item>> part : parts) part.get();
        Thread.sleep(800);
        for (Future<List<Item>> part : parts) {
            System.out.println(digest(part.get()));
            part.get().removeIf(item -> item.id % 3 == 0);
        }
        System.gc();
        Thread.sleep(500);
        for (int round = 0; round < 20; round++) build(round, 20000);
        for (Future<List<Item>> part : parts) System.out.println(digest(part.get()));
        pool.shutdown();
    }
}
