/* is: integer sort by buckets, repeated. Histogram, prefix sums, scatter and a
 * counting sort per bucket: a few regions of milliseconds per iteration, bound
 * by memory, with a dynamic schedule where buckets differ in size.
 *
 * The keys are divided into a FIXED number of parts, each with its histogram.
 * A part is handled by whichever thread comes: no region expects the thread
 * that filled a histogram to be the one that uses it, so teams may change.
 */
#include "common.h"

enum { KEY_BITS = 20, BUCKET_BITS = 9, BUCKETS = 1 << BUCKET_BITS, LOW_BITS = KEY_BITS - BUCKET_BITS, PARTS = 64 };

static long n;
static uint32_t *keys, *scattered, *sorted;
static int32_t count[PARTS][BUCKETS];   /* then: where that part's keys of that bucket go */
static int32_t start[BUCKETS + 1];

/* Sum of four uniform numbers, as in nature: the middle buckets are fuller. */
static uint32_t new_key(uint64_t index)
{
    uint64_t bits = mix64(index);
    const uint64_t mask = (1 << (KEY_BITS - 2)) - 1;
    return (uint32_t)((bits & mask) + (bits >> 16 & mask) + (bits >> 32 & mask) + (bits >> 46 & mask));
}

/* Some keys of each part change, then each part is counted. */
static void change_and_count(long iteration)
{
#pragma omp parallel for schedule(static)
    for (int part = 0; part < PARTS; part++) {
        long from = n * part / PARTS, to = n * (part + 1) / PARTS;
        for (int c = 0; c < 16; c++) {
            uint64_t index = (uint64_t)((iteration * PARTS + part) * 16 + c);
            keys[from + (long)(mix64(~index) % (uint64_t)(to - from))] = new_key(index + (1u << 30));
        }
        int32_t *mine = count[part];
        memset(mine, 0, sizeof count[part]);
        for (long i = from; i < to; i++)
            mine[keys[i] >> LOW_BITS]++;
    }
}

/* Turns the counts into positions: bucket by bucket, in a bucket part by part. */
static void place(void)
{
    int32_t total[BUCKETS];
#pragma omp parallel for schedule(static)
    for (int b = 0; b < BUCKETS; b++) {
        int32_t sum = 0;
        for (int part = 0; part < PARTS; part++) {
            int32_t c = count[part][b];
            count[part][b] = sum;
            sum += c;
        }
        total[b] = sum;
    }
    for (int b = 0; b < BUCKETS; b++)
        start[b + 1] = start[b] + total[b];
}

static void scatter(void)
{
#pragma omp parallel for schedule(static)
    for (int part = 0; part < PARTS; part++) {
        int32_t to[BUCKETS];
        for (int b = 0; b < BUCKETS; b++)
            to[b] = start[b] + count[part][b];
        for (long i = n * part / PARTS; i < n * (part + 1) / PARTS; i++)
            scattered[to[keys[i] >> LOW_BITS]++] = keys[i];
    }
}

static void sort_buckets(void)
{
#pragma omp parallel for schedule(dynamic, 4)
    for (int b = 0; b < BUCKETS; b++) {
        int32_t seen[1 << LOW_BITS] = {0};
        const uint32_t low = (1u << LOW_BITS) - 1, high = (uint32_t)b << LOW_BITS;
        for (int32_t i = start[b]; i < start[b + 1]; i++)
            seen[scattered[i] & low]++;
        uint32_t *out = sorted + start[b];
        for (uint32_t v = 0; v <= low; v++)
            for (int32_t c = seen[v]; c > 0; c--)
                *out++ = high | v;
    }
}

/* Ascending, and the same multiset as the keys (sum of mixed keys). */
static bool check_sorted(void)
{
    long wrong = 0;
    uint64_t before = 0, after = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong, before, after)
    for (long i = 0; i < n; i++) {
        wrong += i > 0 && sorted[i - 1] > sorted[i];
        before += mix64(keys[i]);
        after += mix64(sorted[i]);
    }
    if (wrong != 0 || before != after)
        fprintf(stderr, "is: %ld pairs out of order, keys %s\n", wrong, before == after ? "kept" : "lost");
    return wrong == 0 && before == after;
}

int main(int argc, char **argv)
{
    struct run run = run_begin("is", argc, argv);
    n = run_pick(&run, 1L << 16, 1L << 19, 1L << 21, 1L << 22);
    const long iterations = run.times * run_pick(&run, 2, 60, 230, 600);
    keys = need((size_t)n, sizeof *keys);
    scattered = need((size_t)n, sizeof *scattered);
    sorted = need((size_t)n, sizeof *sorted);
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        keys[i] = new_key((uint64_t)i);

    uint64_t hash = 0;
    run_start(&run);
    for (long iteration = 0; iteration < iterations; iteration++) {
        change_and_count(iteration);
        place();
        scatter();
        sort_buckets();
        for (int probe = 1; probe < 16; probe++)
            hash = hash_word(hash, sorted[n * probe / 16]);
    }
    double time_s = run_stop(&run);

    bool good = check_sorted();
    for (long i = 0; i < n; i++)
        hash = (hash ^ sorted[i]) * 0x9fb21c651e98df25u;
    return run_end(good, mix64(hash), time_s, (double)iterations * (double)n, "keys");
}
