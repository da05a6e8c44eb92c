/* A malloc that asks for the number of CPUs when it is first called, and when it is loaded, as
 * jemalloc and mimalloc do. It must not be called back while it asks: it is not ready then.
 * At the end it says what it heard; -1 if asking changed errno.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static char memory[64 << 20];
static size_t used;
static int asking, ready, online, nprocs, cpus;

static void ask(void)
{
    cpu_set_t mask;
    int before = errno;
    ready = asking = 1;
    errno = 77;
    online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (errno != 77)
        online = -1;
    nprocs = get_nprocs();
    sched_getcpu();
    pthread_getaffinity_np(pthread_self(), sizeof mask, &mask);
    cpus = sched_getaffinity(0, sizeof mask, &mask) ? -1 : CPU_COUNT(&mask);
    sched_setaffinity(0, sizeof mask, &mask);
    asking = 0;
    errno = before;
}

static void *take(size_t size)
{
    if (asking) {
        write(2, "called back\n", 12);
        _exit(3);
    }
    if (!ready)
        ask();
    size_t at = __atomic_fetch_add(&used, (size + 31) & ~(size_t)15, __ATOMIC_RELAXED) + 16;
    if (at + size > sizeof memory)
        abort();
    memcpy(memory + at - 16, &size, sizeof size);
    return memory + at;
}

void *malloc(size_t size) { return take(size); }
void *calloc(size_t n, size_t size) { return take(n * size); }
void free(void *p) { (void)p; }
void *realloc(void *old, size_t size)
{
    size_t had = 0;
    if (old)
        memcpy(&had, (char *)old - 16, sizeof had);
    return memcpy(take(size), old ? old : memory, had < size ? had : size);
}
void *memalign(size_t to, size_t size)
{
    size_t at = (size_t)take(size + to + 16), up = (at + 15 + to) / to * to;
    memcpy((char *)up - 16, &size, sizeof size);
    return (void *)up;
}
void *aligned_alloc(size_t to, size_t size) { return memalign(to, size); }
int posix_memalign(void **p, size_t to, size_t size) { return !(*p = memalign(to, size)); }

__attribute__((constructor)) static void loaded(void)
{
#ifdef FIRST
    ask();
#else
    take(1);
#endif
}

__attribute__((destructor)) static void end(void)
{
    char text[64];
    write(1, text, (size_t)snprintf(text, sizeof text, "malloc heard %d %d %d\n", online, nprocs, cpus));
}
