/* pthread_mutex_*: every kind, every result. */
#include "check.h"

static pthread_mutex_t fixed = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t fixed_adaptive = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t fixed_recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t fixed_checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

static void *other_try(void *m) { return (void *)name(pthread_mutex_trylock(m)); }
static void *other_unlock(void *m) { return (void *)name(pthread_mutex_unlock(m)); }
static void *other_lock_unlock(void *m) {
    int a = pthread_mutex_lock(m), b = pthread_mutex_unlock(m);
    return (void *)name(a ? a : b);
}
static void *other_timed(void *m) {
    struct timespec t = in_ns(CLOCK_REALTIME, SECOND / 100);
    int result = pthread_mutex_timedlock(m, &t);
    MUST(result != ETIMEDOUT || has_passed(CLOCK_REALTIME, &t));
    return (void *)name(result);
}
static void *other_clock(void *m) {
    struct timespec t = in_ns(CLOCK_MONOTONIC, SECOND / 100);
    int result = pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &t);
    MUST(result != ETIMEDOUT || has_passed(CLOCK_MONOTONIC, &t));
    return (void *)name(result);
}
static void *other_past(void *m) {
    struct timespec t = {-5, 0};
    return (void *)name(pthread_mutex_timedlock(m, &t));
}
static void *other_bad_time(void *m) {
    struct timespec t = {0, SECOND}, u = {0, -1};
    int a = pthread_mutex_timedlock(m, &t), b = pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &u);
    MUST(a == b);
    return (void *)name(a);
}
static void *other_bad_clock(void *m) {
    struct timespec t = in_ns(CLOCK_MONOTONIC, 0);
    return (void *)name(pthread_mutex_clocklock(m, CLOCK_PROCESS_CPUTIME_ID, &t));
}

static void all(const char *kind, pthread_mutex_t *m, int may_lock_twice) {
    printf("-- %s\n", kind);
    struct timespec bad = {0, SECOND}, soon;
    SHOW(pthread_mutex_lock(m));
    SHOW(pthread_mutex_trylock(m));
    if (may_lock_twice) {
        SHOW(pthread_mutex_lock(m));
        soon = in_ns(CLOCK_REALTIME, SECOND / 100);
        SHOW(pthread_mutex_timedlock(m, &soon));
        SHOW(pthread_mutex_unlock(m));
    }
    void *(*others[])(void *) = {other_try, other_timed, other_clock, other_past, other_bad_time, other_bad_clock};
    for (int i = 0; i < 6; i++) printf("another thread, %d: %s\n", i, (char *)end(start(others[i], m)));
    SHOW(pthread_mutex_destroy(m));
    pthread_t waiter = start(other_lock_unlock, m);
    usleep(2000);
    SHOW(pthread_mutex_unlock(m));
    if (may_lock_twice) SHOW(pthread_mutex_unlock(m)), SHOW(pthread_mutex_unlock(m));
    printf("the waiter: %s\n", (char *)end(waiter));
    SHOW(pthread_mutex_timedlock(m, &bad));
    SHOW(pthread_mutex_unlock(m));
    SHOW(pthread_mutex_clocklock(m, CLOCK_REALTIME, &bad));
    SHOW(pthread_mutex_unlock(m));
    SHOW(pthread_mutex_clocklock(m, CLOCK_BOOTTIME, &bad));
    if (pthread_mutex_trylock(m) == 0) printf("it was free\n");
    SHOW(pthread_mutex_unlock(m));
    SHOW(pthread_mutex_destroy(m));
    SHOW(pthread_mutex_lock(m));
    SHOW(pthread_mutex_trylock(m));
    SHOW(pthread_mutex_unlock(m));
    SHOW(pthread_mutex_destroy(m));
    SHOW(pthread_mutex_init(m, NULL));
    SHOW(pthread_mutex_lock(m));
    SHOW(pthread_mutex_unlock(m));
    SHOW(pthread_mutex_destroy(m));
}

static void *dies_with_it(void *m) { return (void *)name(pthread_mutex_lock(m)); }

/* More than stand in line for a timed lock of corefit's: the others wait outside of the line. */
#define CROWD 300
static _Atomic int arrived, timed_out;
static void *waits_in_the_crowd(void *mutex) {
    struct timespec t = in_ns(CLOCK_REALTIME, SECOND);
    arrived++;
    if (pthread_mutex_timedlock(mutex, &t) == ETIMEDOUT) timed_out++;
    return NULL;
}

int main(void) {
    static const struct { const char *name; int type; } types[] = {
        {"default", PTHREAD_MUTEX_DEFAULT}, {"normal", PTHREAD_MUTEX_NORMAL},
        {"adaptive", PTHREAD_MUTEX_ADAPTIVE_NP}, {"recursive", PTHREAD_MUTEX_RECURSIVE},
        {"error-check", PTHREAD_MUTEX_ERRORCHECK}};
    for (int shared = 0; shared < 2; shared++)
        for (int inherit = 0; inherit < 2; inherit++)
            for (int i = 0; i < 5; i++) {
                /* Every heap byte is set, so that only init makes it a mutex. */
                pthread_mutex_t *m = malloc(sizeof *m);
                memset(m, 0xa5, sizeof *m);
                pthread_mutexattr_t a;
                pthread_mutexattr_init(&a);
                /* "default" without a call of settype. */
                if (i) SHOW(pthread_mutexattr_settype(&a, types[i].type));
                pthread_mutexattr_setpshared(&a, shared);
                SHOW(pthread_mutexattr_setprotocol(&a, inherit ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE));
                SHOW(pthread_mutex_init(m, &a));
                pthread_mutexattr_destroy(&a);
                char name[64];
                snprintf(name, sizeof name, "%s%s%s", types[i].name, shared ? ", shared" : "", inherit ? ", PI" : "");
                all(name, m, types[i].type == PTHREAD_MUTEX_RECURSIVE);
                free(m);
            }
    all("static", &fixed, 0);
    all("static adaptive", &fixed_adaptive, 0);
    all("static recursive", &fixed_recursive, 1);
    all("static error-check", &fixed_checking, 0);

    printf("-- the owner\n");
    pthread_mutex_t m, checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    MUST(pthread_mutex_lock(&checking) == 0);
    SHOW(pthread_mutex_lock(&checking));
    printf("another thread unlocks: %s\n", (char *)end(start(other_unlock, &checking)));

    printf("-- robust\n");
    for (int shared = 0; shared < 2; shared++) {
        pthread_mutexattr_t a;
        pthread_mutexattr_init(&a);
        pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
        pthread_mutexattr_setpshared(&a, shared);
        SHOW(pthread_mutex_init(&m, &a));
        printf("who dies: %s\n", (char *)end(start(dies_with_it, &m)));
        SHOW(pthread_mutex_lock(&m));
        SHOW(pthread_mutex_consistent(&m));
        SHOW(pthread_mutex_unlock(&m));
        printf("who dies: %s\n", (char *)end(start(dies_with_it, &m)));
        SHOW(pthread_mutex_trylock(&m));
        SHOW(pthread_mutex_unlock(&m));
        SHOW(pthread_mutex_lock(&m));
        SHOW(pthread_mutex_destroy(&m));
    }

    printf("-- shared by two processes\n");
    pthread_mutex_t *both = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long *count = (long *)(both + 1);
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    SHOW(pthread_mutex_init(both, &a));
    fflush(stdout);
    pid_t pid = fork();
    for (int i = 0; i < 20000; i++) {
        pthread_mutex_lock(both);
        ++*count;
        pthread_mutex_unlock(both);
    }
    if (pid == 0) _exit(0);
    waitpid(pid, NULL, 0);
    printf("count %ld\n", *count);

    printf("-- no cancellation point, however many wait\n");
    MUST(pthread_mutex_init(&m, NULL) == 0 && pthread_mutex_lock(&m) == 0);
    pthread_t crowd[CROWD];
    for (int i = 0; i < CROWD; i++) crowd[i] = start(waits_in_the_crowd, &m);
    UNTIL(arrived == CROWD);
    for (int i = 0; i < CROWD; i++) pthread_cancel(crowd[i]);
    for (int i = 0; i < CROWD; i++) end(crowd[i]);
    printf("timed out: %d\n", timed_out);
    SHOW(pthread_mutex_unlock(&m));
    SHOW(pthread_mutex_destroy(&m));

    printf("-- errno is left alone\n");
    errno = 77;
    pthread_t waiter;
    MUST(pthread_mutex_init(&m, NULL) == 0 && pthread_mutex_lock(&m) == 0);
    waiter = start(other_timed, &m);
    printf("%s\n", (char *)end(waiter));
    pthread_mutex_unlock(&m);
    printf("errno %d\n", errno);
    return 0;
}
