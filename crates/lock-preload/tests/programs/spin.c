/* pthread_spin_*: private ones, shared ones, and some that were never initialised by a call. */
#include "check.h"

static void *other_try(void *s) { return (void *)name(pthread_spin_trylock(s)); }

static pthread_spinlock_t *lock;
static long *count;
static void *adds(void *unused) {
    for (int i = 0; i < 5000; i++) {
        pthread_spin_lock(lock);
        ++*count;
        pthread_spin_unlock(lock);
    }
    return unused;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct { pthread_spinlock_t lock; long count; } *both =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    lock = &both->lock;
    count = &both->count;
    for (int kind = 0; kind < 3; kind++) {
        printf("-- kind %d\n", kind);
        if (kind < 2) SHOW(pthread_spin_init(lock, kind ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE));
        else *lock = 1; /* as glibc leaves one behind that is free */
        SHOW(pthread_spin_trylock(lock));
        SHOW(pthread_spin_trylock(lock));
        printf("another thread: %s\n", (char *)end(start(other_try, (void *)lock)));
        SHOW(pthread_spin_unlock(lock));
        SHOW(pthread_spin_lock(lock));
        SHOW(pthread_spin_unlock(lock));
        *count = 0;
        pthread_t threads[8];
        /* Few threads that spin in glibc: each turn may cost a timeslice. */
        int n = kind ? 2 : 8;
        for (int i = 0; i < n; i++) threads[i] = start(adds, NULL);
        for (int i = 0; i < n; i++) end(threads[i]);
        printf("count %s\n", *count == 5000 * n ? "right" : "wrong");
        if (kind == 1) {
            *count = 0;
            fflush(stdout);
            pid_t pid = fork();
            adds(NULL);
            if (pid == 0) _exit(0);
            waitpid(pid, NULL, 0);
            printf("count of two processes %ld\n", *count);
        }
        SHOW(pthread_spin_destroy(lock));
    }
    return 0;
}
