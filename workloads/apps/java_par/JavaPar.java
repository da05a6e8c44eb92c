import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.RecursiveAction;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The JVM as a benchmark program: parallel streams and a fork-join merge sort, in many short rounds.
 *
 * <p>The pool has as many threads as the JVM believes in CPUs; the garbage collector and the compilers size
 * themselves by the same number. It is not the common pool, which has two working threads for one CPU as for two
 * (the caller and at least one worker), and with which {@code Arrays.parallelSort} is sequential on two CPUs.
 */
public final class JavaPar {
    private static final int ROUNDS_AT_SCALE_ONE = 120;
    private static final int NUMBERS = 200_000;
    private static final int SMALL = 8_000;

    public static void main(String[] args) throws Exception {
        double scale = scale(args);
        int rounds = (int) Math.max(1, Math.round(ROUNDS_AT_SCALE_ONE * scale));
        int threads = Runtime.getRuntime().availableProcessors();
        System.out.println("app: java_par\nthreads: " + threads);

        long begun = System.nanoTime();
        ForkJoinPool pool = new ForkJoinPool(threads);
        long checksum = 0;
        boolean verified = true;
        for (int round = 0; round < rounds; round++) {
            long seed = checksum + round;
            // A parallel stream that is started inside a pool runs in that pool.
            long[] numbers =
                    pool.submit(() -> LongStream.range(0, NUMBERS).parallel().map(i -> mix(seed + i)).toArray()).get();
            long before = pool.submit(() -> Arrays.stream(numbers).parallel().reduce(0, Long::sum)).get();
            pool.invoke(new Sort(numbers, new long[NUMBERS], 0, NUMBERS));
            long after = pool.submit(() -> Arrays.stream(numbers).parallel().reduce(0, Long::sum)).get();
            verified &= before == after
                    && pool.submit(() -> IntStream.range(1, NUMBERS)
                                    .parallel()
                                    .allMatch(i -> numbers[i - 1] <= numbers[i]))
                            .get();
            checksum = mix(checksum ^ before ^ numbers[NUMBERS / 2]);
        }
        double tookS = (System.nanoTime() - begun) / 1e9;

        System.out.println("verified: " + (verified ? "yes" : "NO"));
        System.out.printf(Locale.ROOT, "checksum: %016x%ntime_s: %.3f%n", checksum, tookS);
        System.exit(verified ? 0 : 1);
    }

    /** Merge sort of {@code numbers[from, to)} by recursive halving. */
    private static final class Sort extends RecursiveAction {
        private static final long serialVersionUID = 1;
        private final transient long[] numbers;
        private final transient long[] buffer;
        private final int from;
        private final int to;

        Sort(long[] numbers, long[] buffer, int from, int to) {
            this.numbers = numbers;
            this.buffer = buffer;
            this.from = from;
            this.to = to;
        }

        @Override
        protected void compute() {
            if (to - from <= SMALL) {
                Arrays.sort(numbers, from, to);
                return;
            }
            int middle = (from + to) >>> 1;
            invokeAll(new Sort(numbers, buffer, from, middle), new Sort(numbers, buffer, middle, to));
            System.arraycopy(numbers, from, buffer, from, to - from);
            int left = from;
            int right = middle;
            for (int i = from; i < to; i++) {
                boolean takeLeft = right == to || (left < middle && buffer[left] <= buffer[right]);
                numbers[i] = takeLeft ? buffer[left++] : buffer[right++];
            }
        }
    }

    /** A mixing of 64 bits: rounds of shift, exclusive or and multiply. */
    private static long mix(long value) {
        for (int i = 0; i < 64; i++) {
            value = (value ^ (value >>> 31)) * 0x9E37_79B9_7F4A_7C15L + 0x632B_E5ABL;
        }
        return value;
    }

    private static double scale(String[] args) {
        double scale = Double.NaN;
        try {
            scale = args.length == 0 ? 1.0 : Double.parseDouble(args[0]);
        } catch (NumberFormatException malformed) {
            // Stays NaN, and is reported with the other bad arguments.
        }
        if (args.length > 1 || !(scale > 0 && scale <= 1000)) {
            System.err.println("java_par: usage: JavaPar [SCALE], SCALE above 0 and at most 1000; got "
                    + Arrays.toString(args));
            System.exit(2);
        }
        return scale;
    }
}
