/* Where the functions are that programs of all times call. */
#include "check.h"
#include <dlfcn.h>

#define OLD(function, version) \
    __asm__(".symver old_" #function "," #function "@" version); \
    extern int old_##function();
OLD(pthread_mutex_lock, "GLIBC_2.2.5")
OLD(pthread_mutex_trylock, "GLIBC_2.2.5")
OLD(pthread_mutex_timedlock, "GLIBC_2.2.5")
OLD(pthread_mutex_clocklock, "GLIBC_2.30")
OLD(pthread_mutex_unlock, "GLIBC_2.2.5")
OLD(pthread_mutex_destroy, "GLIBC_2.2.5")
OLD(pthread_spin_init, "GLIBC_2.2.5")
OLD(pthread_spin_lock, "GLIBC_2.2.5")
OLD(pthread_spin_trylock, "GLIBC_2.2.5")
OLD(pthread_spin_unlock, "GLIBC_2.2.5")
OLD(pthread_cond_init, "GLIBC_2.2.5")
OLD(pthread_cond_destroy, "GLIBC_2.2.5")
OLD(pthread_cond_signal, "GLIBC_2.2.5")
OLD(pthread_cond_broadcast, "GLIBC_2.2.5")
OLD(pthread_cond_wait, "GLIBC_2.2.5")
OLD(pthread_cond_timedwait, "GLIBC_2.2.5")
OLD(pthread_cond_clockwait, "GLIBC_2.30")

static void where(const char *name, void *function) {
    Dl_info info;
    MUST(dladdr(function, &info));
    const char *slash = strrchr(info.dli_fname, '/');
    printf("%s %s\n", name, slash ? slash + 1 : info.dli_fname);
}
#define BOTH(function) \
    where(#function, (void *)function); \
    where("old_" #function, (void *)old_##function)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static int set;
static void *old_waiter(void *unused) {
    old_pthread_mutex_lock(&mutex);
    while (!set) old_pthread_cond_wait(&cond, &mutex);
    old_pthread_mutex_unlock(&mutex);
    return unused;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        BOTH(pthread_mutex_lock);
        BOTH(pthread_mutex_trylock);
        BOTH(pthread_mutex_timedlock);
        BOTH(pthread_mutex_clocklock);
        BOTH(pthread_mutex_unlock);
        BOTH(pthread_mutex_destroy);
        BOTH(pthread_spin_init);
        BOTH(pthread_spin_lock);
        BOTH(pthread_spin_trylock);
        BOTH(pthread_spin_unlock);
        BOTH(pthread_cond_init);
        BOTH(pthread_cond_destroy);
        BOTH(pthread_cond_signal);
        BOTH(pthread_cond_broadcast);
        BOTH(pthread_cond_wait);
        BOTH(pthread_cond_timedwait);
        BOTH(pthread_cond_clockwait);
    }
    /* An old and a new part of one program use the same objects: an old waiter, a new signaller. glibc's
     * own oldest condition variables are other objects than its newest, so this is for the library only. */
    if (argc > 1) {
        memset(&cond, 0xa5, sizeof cond);
        MUST(old_pthread_cond_init(&cond, NULL) == 0);
        pthread_t thread = start(old_waiter, NULL);
        usleep(5000);
        pthread_mutex_lock(&mutex);
        set = 1;
        pthread_cond_signal(&cond);
        pthread_mutex_unlock(&mutex);
        end(thread);
    }
    puts("done");
    return 0;
}
