/* More threads wait for one mutex than its line has room for: they sleep, and all get it. */
#include "check.h"

#define THREADS 3000
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pid_t tids[THREADS];
static _Atomic int here;
static long count, late;

static void *waits(void *unused) {
    tids[here++] = gettid();
    pthread_mutex_lock(&mutex);
    count++;
    pthread_mutex_unlock(&mutex);
    return unused;
}

/* Gives up while others wait behind it and outside of the line. */
static void *gives_up(void *unused) {
    struct timespec t = in_ns(CLOCK_MONOTONIC, SECOND / 2);
    tids[here++] = gettid();
    if (pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &t) == 0) {
        count++;
        pthread_mutex_unlock(&mutex);
    } else {
        __atomic_add_fetch(&late, 1, __ATOMIC_RELAXED);
    }
    return unused;
}

static void all(void *(*others)(void *)) {
    static pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    MUST(pthread_attr_setstacksize(&small, 65536) == 0);
    here = count = late = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], &small, i % 8 == 0 ? others : waits, NULL) == 0);
    UNTIL(here == THREADS);
    for (int i = 0; i < THREADS; i++)
        if (i % 8) UNTIL(sleeps(tids[i]) || others == gives_up);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(500000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double took = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9;
    if (took > 0.2) printf("waiting half a second took %.3f s of CPU time\n", took);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < THREADS; i++) end(threads[i]);
    printf("all had a turn or gave up: %d\n", count + late == THREADS);
    SHOW(pthread_mutex_destroy(&mutex));
    SHOW(pthread_mutex_init(&mutex, NULL));
}

int main(void) {
    all(waits);
    all(gives_up);
    return 0;
}
