/* What a child of fork finds: locks that others waited for, and condition variables, go on. */
#include "check.h"
#include <sys/syscall.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, idle = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t handled = PTHREAD_MUTEX_INITIALIZER, sleepy = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER, quiet = PTHREAD_COND_INITIALIZER;
static pthread_spinlock_t spin;
static _Atomic int asleep, stop;
static pid_t tids[16];

static void *waits_for_mutex(void *unused) {
    tids[asleep++] = gettid();
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}
static void *waits_for_spin(void *unused) {
    asleep++;
    pthread_spin_lock(&spin);
    pthread_spin_unlock(&spin);
    return unused;
}
static void *waits_in_time(void *unused) {
    struct timespec t = in_ns(CLOCK_REALTIME, SECOND / 1000);
    pthread_mutex_timedlock(&mutex, &t);
    asleep++;
    return unused;
}
static void *waits_for_cond(void *unused) {
    pthread_mutex_lock(&sleepy);
    tids[asleep++] = gettid();
    while (!stop) pthread_cond_wait(&cond, &sleepy);
    pthread_mutex_unlock(&sleepy);
    return unused;
}
static void *wakes(void *unused) {
    pthread_mutex_lock(&sleepy);
    stop = 2;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&sleepy);
    return unused;
}

static void before(void) { pthread_mutex_lock(&handled); }
static void after(void) { pthread_mutex_unlock(&handled); }
static void *uses_handled(void *unused) {
    while (!stop) {
        pthread_mutex_lock(&handled);
        pthread_mutex_unlock(&handled);
    }
    return unused;
}

/* The child has to come this far in time; else its alarm ends it. */
static void ends_well(pid_t pid) {
    int status;
    waitpid(pid, &status, 0);
    printf("child: %s %d\n", WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* Only with the library: glibc's condition variables wait in the child for waiters that are not there. */
static void waiters_on_a_condition_variable(void) {
    pthread_t threads[5];
    printf("-- waiters on a condition variable\n");
    asleep = 0;
    for (int i = 0; i < 5; i++) threads[i] = start(waits_for_cond, NULL);
    UNTIL(asleep == 5 && sleeps(tids[0]) && sleeps(tids[1]) && sleeps(tids[2]) && sleeps(tids[3]) && sleeps(tids[4]));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        /* Nobody waits here; whoever comes now is woken. */
        for (int i = 0; i < 3; i++) MUST(pthread_cond_signal(&cond) == 0);
        asleep = stop = 0;
        pthread_t one = start(waits_for_cond, NULL);
        UNTIL(asleep == 1);
        pthread_t two = start(wakes, NULL);
        end(one);
        end(two);
        for (int i = 0; i < 20; i++) {
            asleep = stop = 0;
            one = start(waits_for_cond, NULL);
            UNTIL(asleep == 1);
            pthread_mutex_lock(&sleepy);
            stop = 1;
            pthread_cond_signal(&cond);
            pthread_mutex_unlock(&sleepy);
            end(one);
        }
        MUST(pthread_cond_destroy(&cond) == 0 && pthread_mutex_destroy(&sleepy) == 0);
        _exit(0);
    }
    ends_well(pid);
    end(start(wakes, NULL));
    for (int i = 0; i < 5; i++) end(threads[i]);
    SHOW(pthread_cond_destroy(&cond));
}

static void *waits_for(void *other) {
    tids[asleep++] = gettid();
    pthread_mutex_lock(other);
    pthread_mutex_unlock(other);
    return NULL;
}
static void *waits_in_time_for(void *other) {
    struct timespec t = in_ns(CLOCK_REALTIME, 3 * SECOND);
    tids[asleep++] = gettid();
    MUST(pthread_mutex_timedlock(other, &t) == ETIMEDOUT);
    return NULL;
}

/* A mutex of one process in memory that a child shares or does not have: the child leaves it alone. */
static void mutex_that_stays_the_parents(int flags, int advice) {
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    MUST(memory != MAP_FAILED && madvise(memory, 4096, advice) == 0);
    pthread_mutex_t *other = (pthread_mutex_t *)memory;
    pthread_t threads[4];
    MUST(pthread_mutex_init(other, NULL) == 0);
    alarm(60);
    pthread_mutex_lock(other);
    asleep = 0;
    for (int i = 0; i < 4; i++) {
        threads[i] = start(i == 1 ? waits_in_time_for : waits_for, other);
        UNTIL(asleep == i + 1 && sleeps(tids[i]));
    }
    /* Gives up with others behind it: its ticket stays in line. */
    end(threads[1]);
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    ends_well(pid);
    pthread_mutex_unlock(other);
    for (int i = 0; i < 4; i++)
        if (i != 1) end(threads[i]);
    alarm(0);
    SHOW(pthread_mutex_destroy(other));
    MUST(munmap(memory, 4096) == 0);
}

int main(int argc, char **argv) {
    (void)argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE) == 0);
    pthread_atfork(before, after, after);

    printf("-- a held mutex and a held spinlock with waiters\n");
    pthread_mutex_lock(&mutex);
    pthread_spin_lock(&spin);
    pthread_t threads[16];
    for (int i = 0; i < 3; i++) threads[i] = start(waits_for_mutex, NULL);
    UNTIL(asleep == 3 && sleeps(tids[0]) && sleeps(tids[1]) && sleeps(tids[2]));
    threads[3] = start(waits_for_spin, NULL);
    UNTIL(asleep == 4);
    threads[4] = start(waits_in_time, NULL);
    UNTIL(asleep == 5);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        pthread_mutex_unlock(&mutex);
        pthread_spin_unlock(&spin);
        for (int i = 0; i < 3; i++) {
            MUST(pthread_mutex_trylock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
            MUST(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
            MUST(pthread_spin_lock(&spin) == 0 && pthread_spin_unlock(&spin) == 0);
        }
        asleep = 0;
        pthread_t again = start(waits_for_mutex, NULL);
        end(again);
        MUST(pthread_mutex_destroy(&mutex) == 0);
        _exit(0);
    }
    ends_well(pid);
    pthread_mutex_unlock(&mutex);
    pthread_spin_unlock(&spin);
    for (int i = 0; i < 5; i++) end(threads[i]);
    SHOW(pthread_mutex_destroy(&mutex));

    printf("-- in memory that the child shares, and that it does not have\n");
    mutex_that_stays_the_parents(MAP_SHARED, MADV_NORMAL);
    mutex_that_stays_the_parents(MAP_PRIVATE, MADV_DONTFORK);

    if (argc > 1) waiters_on_a_condition_variable();

    printf("-- while other threads lock what the handlers take\n");
    stop = 0;
    for (int i = 0; i < 6; i++) threads[i] = start(uses_handled, NULL);
    int bad = 0;
    for (int i = 0; i < 60; i++) {
        pid = fork();
        if (pid == 0) {
            alarm(20);
            for (int n = 0; n < 100; n++) {
                pthread_mutex_lock(&handled);
                pthread_mutex_unlock(&handled);
            }
            pthread_mutex_lock(&idle);
            pthread_cond_signal(&quiet);
            pthread_mutex_unlock(&idle);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        bad += status != 0;
    }
    stop = 1;
    for (int i = 0; i < 6; i++) end(threads[i]);
    printf("children that failed: %d\n", bad);
    return 0;
}
