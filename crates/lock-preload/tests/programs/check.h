/* What the conformance programs share: every step is printed with its result, so that a run with the
 * library can be compared with one without. */
#ifndef CHECK_H
#define CHECK_H
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L

/* Prints the call and the name of its result. */
#define SHOW(call) printf("%s = %s\n", #call, name(call))
/* Ends a run that cannot go on. */
#define MUST(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s does not hold\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static inline const char *name(int error) { return error ? strerrorname_np(error) : "0"; }

static inline struct timespec in_ns(clockid_t clock, long ns) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += ns / SECOND;
    t.tv_nsec += ns % SECOND;
    if (t.tv_nsec >= SECOND) t.tv_sec++, t.tv_nsec -= SECOND;
    if (t.tv_nsec < 0) t.tv_sec--, t.tv_nsec += SECOND;
    return t;
}

static inline int has_passed(clockid_t clock, const struct timespec *t) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

static inline pthread_t start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, run, argument) == 0);
    return thread;
}

static inline void *end(pthread_t thread) {
    void *result;
    MUST(pthread_join(thread, &result) == 0);
    return result;
}

/* Until another thread has done something: no time is promised, and none is assumed. */
#define UNTIL(condition) while (!(condition)) usleep(200)

/* Whether the thread sleeps in a futex: 202 is the system call. */
static inline int sleeps(pid_t tid) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    FILE *f = fopen(path, "r");
    if (f) {
        if (!fgets(text, sizeof text, f)) text[0] = 0;
        fclose(f);
    }
    return strncmp(text, "202 ", 4) == 0;
}
#endif
