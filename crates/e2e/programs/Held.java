import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;

/** Holds records and memory beside the heap and looks at them all the time, in two threads, beside garbage; tells what it is told, and says "fine" and ends with status 7 at the end. */
public class Held {
    record Item(int id, String text, byte[] bytes, ByteBuffer beside) {
        int sum() { return Objects.hash(id, text, Arrays.hashCode(bytes), beside.duplicate().hashCode()); }
    }

    static volatile boolean over;

    static void look(Item[] held, int[] sums, int start) {
        int at = start;
        while (!over) {
            for (int i = 0; i < 60; i++, at++)
                if (held[at % held.length].sum() != sums[at % held.length]) {
                    System.out.println("WRONG " + at);
                    Runtime.getRuntime().halt(1);
                }
            List<String> garbage = new ArrayList<>();
            for (int i = 0; i < 2000; i++) garbage.add("garbage " + i);
            try { Thread.sleep(2); } catch (InterruptedException e) { throw new RuntimeException(e); }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Random random = new Random(7);
        Item[] held = new Item[8000];
        int[] sums = new int[held.length];
        for (int i = 0; i < held.length; i++) {
            byte[] bytes = new byte[600];
            random.nextBytes(bytes);
            ByteBuffer beside = ByteBuffer.allocateDirect(200);
            beside.put(bytes, 0, 200).flip();
            held[i] = new Item(i, "text " + i * 7, bytes, beside);
            sums[i] = held[i].sum();
        }
        Thread[] threads = {new Thread(() -> look(held, sums, 0)), new Thread(() -> look(held, sums, 4000))};
        for (Thread thread : threads) thread.start();
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) System.out.println(line);
        over = true;
        for (Thread thread : threads) thread.join();
        for (int i = 0; i < held.length; i++) if (held[i].sum() != sums[i]) System.exit(1);
        System.out.println("fine");
        System.exit(7);
    }
}
