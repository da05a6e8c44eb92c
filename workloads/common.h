/* What every workload shares: its argument, its clock, its five output lines,
 * and sums whose rounding does not depend on the team size.
 *
 * A program is `NAME [SIZE]` and prints exactly
 *     NAME size=W threads_max=2
 *     verified: yes
 *     checksum: 0123456789abcdef
 *     time_s: 1.234
 *     rate: 567.8 steps per_s
 * and exits 0 when verified, 1 when not, 2 on bad arguments.
 */
#ifndef WORKLOADS_COMMON_H
#define WORKLOADS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- one run: argument, clock, output ---------------------------------- */

struct run {
    const char *name;
    char class;      /* T, S, W or A */
    long times;      /* N of `W*N`, 1 without it */
    double start_s;  /* set by run_start */
};

enum { TIMES_MAX = 10000 };

/* Reads SIZE (class T, S, W or A, or CLASS*N); NULL stands for W.
 * Ends the program with status 2 and one line when it is anything else. */
static inline struct run run_parse(const char *name, const char *size)
{
    struct run run = {.name = name, .class = 'W', .times = 1};
    if (size == NULL)
        return run;
    char *end = NULL;
    bool good = size[0] != '\0' && strchr("TSWA", size[0]) != NULL;
    if (good && size[1] != '\0') {
        good = size[1] == '*' && size[2] >= '1' && size[2] <= '9';
        if (good) {
            run.times = strtol(size + 2, &end, 10);
            good = *end == '\0' && run.times <= TIMES_MAX;
        }
    }
    if (!good) {
        fprintf(stderr, "%s: bad size '%s': give T, S, W or A, or W*N with N from 1 to %d\n",
                name, size, TIMES_MAX);
        exit(2);
    }
    run.class = size[0];
    return run;
}

/* The value of this run's class. */
static inline long run_pick(const struct run *run, long tiny, long small, long wide, long all)
{
    return run->class == 'T' ? tiny : run->class == 'S' ? small : run->class == 'W' ? wide : all;
}

static inline void run_title(const struct run *run, int threads_max)
{
    printf("%s size=%c", run->name, run->class);
    if (run->times != 1)
        printf("*%ld", run->times);
    printf(" threads_max=%d\n", threads_max);
    fflush(stdout);
}

#ifdef _OPENMP
/* `NAME [SIZE]`: reads the argument and prints the first line. */
static inline struct run run_begin(const char *name, int argc, char **argv)
{
    if (argc > 2) {
        fprintf(stderr, "%s: too many arguments: usage: %s [T|S|W|A|W*N]\n", name, name);
        exit(2);
    }
    struct run run = run_parse(name, argc == 2 ? argv[1] : NULL);
    run_title(&run, omp_get_max_threads());
    return run;
}
#endif

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Initialisation is over, the timed part begins. */
static inline void run_start(struct run *run)
{
    run->start_s = now_s();
}

/* Seconds since run_start. */
static inline double run_stop(const struct run *run)
{
    return now_s() - run->start_s;
}

/* Prints the other four lines; returns the exit status. */
static inline int run_end(bool verified, uint64_t checksum, double time_s, double count,
                          const char *unit)
{
    printf("verified: %s\n", verified ? "yes" : "NO");
    printf("checksum: %016llx\n", (unsigned long long)checksum);
    printf("time_s: %.3f\n", time_s);
    printf("rate: %.6g %s per_s\n", time_s > 0 ? count / time_s : 0.0, unit);
    return verified ? 0 : 1;
}

/* Memory, zeroed, or the end of the program. */
static inline void *need(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (p == NULL) {
        fprintf(stderr, "out of memory for %zu x %zu bytes\n", count, size);
        exit(3);
    }
    return p;
}

/* ---- random numbers that are a function of their index ------------------- */

/* A bijection of 64-bit words with good avalanche (the splitmix64 finaliser). */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in [0, 1): element `index` of stream `stream`. */
static inline double uniform(uint64_t stream, uint64_t index)
{
    return (double)(mix64(mix64(stream) ^ index) >> 11) * 0x1p-53;
}

/* ---- sums and hashes that do not depend on the team ---------------------- */

/* Floating-point sums are taken per block of a fixed decomposition and then
 * over the blocks in order, so that no team size changes a single bit. */
enum { BLOCKS = 64 };

static inline long block_start(long n, int block)
{
    return n * block / BLOCKS;
}

static inline double sum_in_order(const double *part, long n)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += part[i];
    return sum;
}

static inline uint64_t hash_word(uint64_t hash, uint64_t word)
{
    return mix64(hash ^ word);
}

/* Folds the bits of x into a hash. */
static inline uint64_t hash_double(uint64_t hash, double x)
{
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    return hash_word(hash, word);
}

static inline uint64_t hash_doubles(uint64_t hash, const double *x, long n)
{
    for (long i = 0; i < n; i++)
        hash = hash_double(hash, x[i]);
    return hash;
}

#endif
