import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.RecursiveTask;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The JVM as a benchmark program: parallel sort, parallel streams and a fork-join recursion, in many rounds.
 *
 * <p>The common pool has one thread less than the JVM believes in CPUs; the garbage collector and the compilers
 * size themselves by the same number. Idle pool threads spin briefly and park.
 */
public final class JavaPar {
    private static final int ROUNDS_AT_SCALE_ONE = 60;
    private static final int NUMBERS = 400_000;

    public static void main(String[] args) {
        double scale = scale(args);
        int rounds = (int) Math.max(1, Math.round(ROUNDS_AT_SCALE_ONE * scale));
        System.out.println("app: java_par\nthreads: " + Runtime.getRuntime().availableProcessors());

        long begun = System.nanoTime();
        long checksum = 0;
        boolean verified = true;
        for (int round = 0; round < rounds; round++) {
            long seed = checksum + round;
            long[] numbers = LongStream.range(0, NUMBERS).parallel().map(i -> mix(seed + i)).toArray();
            long before = Arrays.stream(numbers).parallel().reduce(0, Long::sum);
            Arrays.parallelSort(numbers);
            boolean sorted =
                    IntStream.range(1, NUMBERS).parallel().allMatch(i -> numbers[i - 1] <= numbers[i]);
            long after = ForkJoinPool.commonPool().invoke(new Sum(numbers, 0, NUMBERS));
            verified &= sorted && before == after;
            checksum = mix(checksum ^ before ^ numbers[NUMBERS / 2]);
        }
        double tookS = (System.nanoTime() - begun) / 1e9;

        System.out.println("verified: " + (verified ? "yes" : "NO"));
        System.out.printf(Locale.ROOT, "checksum: %016x%ntime_s: %.3f%n", checksum, tookS);
        System.exit(verified ? 0 : 1);
    }

    /** Sum by recursive halving: one task per 2,000 numbers. */
    private static final class Sum extends RecursiveTask<Long> {
        private static final long serialVersionUID = 1;
        private final transient long[] numbers;
        private final int from;
        private final int to;

        Sum(long[] numbers, int from, int to) {
            this.numbers = numbers;
            this.from = from;
            this.to = to;
        }

        @Override
        protected Long compute() {
            if (to - from <= 2_000) {
                long sum = 0;
                for (int i = from; i < to; i++) {
                    sum += numbers[i];
                }
                return sum;
            }
            int middle = (from + to) >>> 1;
            Sum left = new Sum(numbers, from, middle);
            left.fork();
            long right = new Sum(numbers, middle, to).compute();
            return right + left.join();
        }
    }

    /** A bijective mixing of 64 bits: a few rounds of multiply, shift and exclusive or. */
    private static long mix(long value) {
        for (int i = 0; i < 8; i++) {
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
