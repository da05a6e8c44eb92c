/* libresize.so: gives each parallel region another team size, for `check`.
 *
 *     LD_PRELOAD=libresize.so COREFIT_RESIZE=7 OMP_NUM_THREADS=4 ./cg T
 *
 * Sizes go from 1 to omp_get_max_threads() at the first region, pseudo-random
 * with the seed COREFIT_RESIZE (nothing happens without it). COREFIT_RESIZE=HALF
 * keeps the full size for 10 regions and then halves it: one change in mid-run.
 * A test's instrument, not the product: libgomp by its entry points, libomp by
 * an OMPT tool. Regions inside regions and num_threads clauses are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_level(void) __attribute__((weak));
extern void omp_set_num_threads(int) __attribute__((weak));

/* The next region's team size, 0 for "as it was". */
static unsigned next_team(void)
{
    static int full;
    static unsigned long region;
    const char *text = getenv("COREFIT_RESIZE");
    if (text == NULL || omp_get_level() > 0)
        return 0;
    if (full == 0)
        full = omp_get_max_threads();
    region++;
    if (strcmp(text, "HALF") == 0)
        return (unsigned)(region <= 10 || full == 1 ? full : full / 2);
    uint64_t x = (region + strtoull(text, NULL, 10) * 1000003) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return 1 + (unsigned)((x >> 33) % (uint64_t)full);
}

/* ---- libgomp --------------------------------------------------------------- */

typedef void body(void *);
#define TEAM(threads) ((threads) != 0 ? (threads) : next_team())

void GOMP_parallel(body *f, void *data, unsigned threads, unsigned flags)
{
    void (*real)(body *, void *, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel");
    real(f, data, TEAM(threads), flags);
}

void GOMP_parallel_sections(body *f, void *data, unsigned threads, unsigned count, unsigned flags)
{
    void (*real)(body *, void *, unsigned, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel_sections");
    real(f, data, TEAM(threads), count, flags);
}

#define LOOP(name)                                                                             \
    void name(body *f, void *data, unsigned threads, long start, long end, long step,          \
              long chunk, unsigned flags)                                                      \
    {                                                                                          \
        void (*real)(body *, void *, unsigned, long, long, long, long, unsigned) =             \
            dlsym(RTLD_NEXT, #name);                                                           \
        real(f, data, TEAM(threads), start, end, step, chunk, flags);                          \
    }
LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)
LOOP(GOMP_parallel_loop_nonmonotonic_guided)

void GOMP_parallel_loop_maybe_nonmonotonic_runtime(body *f, void *data, unsigned threads, long start,
                                                   long end, long step, unsigned flags)
{
    void (*real)(body *, void *, unsigned, long, long, long, unsigned) =
        dlsym(RTLD_NEXT, "GOMP_parallel_loop_maybe_nonmonotonic_runtime");
    real(f, data, TEAM(threads), start, end, step, flags);
}

/* ---- libomp: an OMPT tool (OpenMP 5.1, section 4) --------------------------- */

typedef void (*entry)(void);
typedef entry lookup(const char *name);
enum { PARALLEL_BEGIN = 3 };

static void parallel_begin(void *task, const void *frame, void *parallel, unsigned requested,
                           int flags, const void *code)
{
    (void)task, (void)frame, (void)parallel, (void)requested, (void)flags, (void)code;
    unsigned team = next_team();
    if (team != 0)
        omp_set_num_threads((int)team);
}

static int initialize(lookup *find, int device, void *data)
{
    (void)device, (void)data;
    int (*set_callback)(int, entry) = (int (*)(int, entry))find("ompt_set_callback");
    set_callback(PARALLEL_BEGIN, (entry)parallel_begin);
    return 1;
}

static void finalize(void *data)
{
    (void)data;
}

struct tool {
    int (*initialize)(lookup *, int, void *);
    void (*finalize)(void *);
    uint64_t data;
};

struct tool *ompt_start_tool(unsigned version, const char *runtime)
{
    static struct tool tool = {initialize, finalize, 0};
    (void)version, (void)runtime;
    return getenv("COREFIT_RESIZE") != NULL ? &tool : NULL;
}
