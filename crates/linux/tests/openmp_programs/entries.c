/* Begins a region through every entry point of libgomp, with and without num_threads, and checks
 * what it computed. Prints a line for each: name, clause, size of the team, "right" or "wrong".
 *
 * gcc emits most of them for pragmas; GOMP_parallel_loop_static and the old *_start entries,
 * which today's gcc no longer emits, are called by hand as gcc 4 did.
 */
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { N = 1000 };
static int hits[N];
static int size;

static void report(const char *name, int clause, bool right)
{
    for (int i = 0; i < N; i++)
        right &= hits[i] == 1;
    memset(hits, 0, sizeof hits);
    printf("%s %d %d %s\n", name, clause, size, right ? "right" : "wrong");
    size = 0;
}

/* A loop over all hits, with a pragma that gcc turns into the entry point `name`. The locals
 * go through the data block. */
#define TEXT(x) #x
#define LOOP(name, clauses)                                                                       \
    for (int clause = 0; clause <= 3; clause += 3) {                                              \
        long a = 1, b = 2, c = 3;                                                                 \
        double d = 1.5;                                                                           \
        if (clause == 0) {                                                                        \
            _Pragma(TEXT(omp parallel for clauses))                                               \
            for (int i = 0; i < N; i++) {                                                         \
                hits[i] += (int)(a + b - c + d);                                                  \
                if (i == 0)                                                                       \
                    size = omp_get_num_threads();                                                 \
            }                                                                                     \
        } else {                                                                                  \
            _Pragma(TEXT(omp parallel for num_threads(clause) clauses))                           \
            for (int i = 0; i < N; i++) {                                                         \
                hits[i] += (int)(a + b - c + d);                                                  \
                if (i == 0)                                                                       \
                    size = omp_get_num_threads();                                                 \
            }                                                                                     \
        }                                                                                         \
        report(name, clause, true);                                                               \
    }

/* ---- by hand ------------------------------------------------------------------------------ */

typedef void body(void *);
extern void GOMP_parallel_start(body *, void *, unsigned);
extern void GOMP_parallel_end(void);
extern void GOMP_parallel_sections_start(body *, void *, unsigned, unsigned);
extern unsigned GOMP_sections_next(void);
extern void GOMP_sections_end_nowait(void);
extern void GOMP_parallel_loop_static_start(body *, void *, unsigned, long, long, long, long);
extern void GOMP_parallel_loop_dynamic_start(body *, void *, unsigned, long, long, long, long);
extern void GOMP_parallel_loop_guided_start(body *, void *, unsigned, long, long, long, long);
extern void GOMP_parallel_loop_runtime_start(body *, void *, unsigned, long, long, long);
extern void GOMP_parallel_loop_static(body *, void *, unsigned, long, long, long, long, unsigned);
extern bool GOMP_loop_static_next(long *, long *);
extern bool GOMP_loop_dynamic_next(long *, long *);
extern bool GOMP_loop_guided_next(long *, long *);
extern bool GOMP_loop_runtime_next(long *, long *);
extern void GOMP_loop_end_nowait(void);

static const char canary[] = "untouched";

static void plain(void *data)
{
    int threads = omp_get_num_threads();
    for (int i = omp_get_thread_num(); i < N; i += threads)
        hits[i] += data == canary;
    if (omp_get_thread_num() == 0)
        size = threads;
}

static void sections(void *data)
{
    for (unsigned s; (s = GOMP_sections_next()) != 0;)
        for (int i = (int)s - 1; i < N; i += 7)
            hits[i] += data == canary;
    GOMP_sections_end_nowait();
    if (omp_get_thread_num() == 0)
        size = omp_get_num_threads();
}

/* 10 to 10 + 3 N in steps of 3: all stack arguments count. */
#define BODY(kind)                                                                                \
    static void kind##_(void *data)                                                                  \
    {                                                                                             \
        long from, to;                                                                            \
        while (GOMP_loop_##kind##_next(&from, &to))                                               \
            for (long i = from; i < to; i += 3)                                                   \
                hits[(i - 10) / 3] += data == canary;                                             \
        GOMP_loop_end_nowait();                                                                   \
        if (omp_get_thread_num() == 0)                                                            \
            size = omp_get_num_threads();                                                         \
    }
BODY(static)
BODY(dynamic)
BODY(guided)
BODY(runtime)

int main(void)
{
    void *data = (void *)canary;
    setvbuf(stdout, NULL, _IOLBF, 0);
    LOOP("GOMP_parallel", schedule(static))
    LOOP("GOMP_parallel_loop_nonmonotonic_dynamic", schedule(dynamic, 3))
    LOOP("GOMP_parallel_loop_nonmonotonic_guided", schedule(guided, 2))
    LOOP("GOMP_parallel_loop_maybe_nonmonotonic_runtime", schedule(runtime))
    LOOP("GOMP_parallel_loop_nonmonotonic_runtime", schedule(nonmonotonic : runtime))
    LOOP("GOMP_parallel_loop_dynamic", schedule(monotonic : dynamic, 3))
    LOOP("GOMP_parallel_loop_guided", schedule(monotonic : guided, 2))
    LOOP("GOMP_parallel_loop_runtime", schedule(monotonic : runtime))
    for (int clause = 0; clause <= 3; clause += 3) {
        if (clause == 0) {
#pragma omp parallel sections
            {
                for (int i = 0; i < 500; i++)
                    hits[i]++;
#pragma omp section
                for (int i = 500; i < N; i++)
                    hits[i]++;
#pragma omp section
                size = omp_get_num_threads();
            }
        } else {
#pragma omp parallel sections num_threads(clause)
            {
                for (int i = 0; i < 500; i++)
                    hits[i]++;
#pragma omp section
                for (int i = 500; i < N; i++)
                    hits[i]++;
#pragma omp section
                size = omp_get_num_threads();
            }
        }
        report("GOMP_parallel_sections", clause, true);
    }
    for (int clause = 0; clause <= 3; clause += 3) {
        long sum = 0;
        if (clause == 0) {
#pragma omp parallel reduction(task, + : sum)
            {
#pragma omp for
                for (int i = 0; i < N; i++) {
#pragma omp task in_reduction(+ : sum)
                    sum += ++hits[i];
                }
#pragma omp master
                size = omp_get_num_threads();
            }
        } else {
#pragma omp parallel reduction(task, + : sum) num_threads(clause)
            {
#pragma omp for
                for (int i = 0; i < N; i++) {
#pragma omp task in_reduction(+ : sum)
                    sum += ++hits[i];
                }
#pragma omp master
                size = omp_get_num_threads();
            }
        }
        report("GOMP_parallel_reductions", clause, sum == N);
    }
    for (unsigned clause = 0; clause <= 3; clause += 3) {
        GOMP_parallel_start(plain, data, clause);
        plain(data);
        GOMP_parallel_end();
        report("GOMP_parallel_start", (int)clause, true);
        GOMP_parallel_sections_start(sections, data, clause, 7);
        sections(data);
        GOMP_parallel_end();
        report("GOMP_parallel_sections_start", (int)clause, true);
        GOMP_parallel_loop_static(static_, data, clause, 10, 10 + 3 * N, 3, 5, 0);
        report("GOMP_parallel_loop_static", (int)clause, true);
#define START(kind, ...)                                                                          \
    GOMP_parallel_loop_##kind##_start(kind##_, data, clause, 10, 10 + 3 * N, 3, ##__VA_ARGS__);   \
    kind##_(data);                                                                                \
    GOMP_parallel_end();                                                                          \
    report("GOMP_parallel_loop_" #kind "_start", (int)clause, true);
        START(static, 5)
        START(dynamic, 5)
        START(guided, 5)
        START(runtime)
    }
    return 0;
}
