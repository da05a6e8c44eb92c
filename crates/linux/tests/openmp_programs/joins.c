/* A shared object whose destructor (with AT_LOAD: whose constructor) waits for a thread that begins
 * regions meanwhile. If they cannot begin, SIGALRM ends the program. */
#include <omp.h>
#include <pthread.h>
#include <unistd.h>

static int stop, rounds, right = 1;

static void *work(void *unused)
{
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        int sum = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(2)
        for (int i = 0; i < 100; i++)
            sum += i;
        right &= sum == 4950;
        __atomic_fetch_add(&rounds, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}

static void wait_for_rounds(int more)
{
    int until = __atomic_load_n(&rounds, __ATOMIC_SEQ_CST) + more;
    while (__atomic_load_n(&rounds, __ATOMIC_SEQ_CST) < until)
        usleep(100);
}

static pthread_t thread;

static void finish(void)
{
    wait_for_rounds(3);
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
}

static void begin(void)
{
    alarm(30);
    pthread_create(&thread, NULL, work, NULL);
}

int joins_begin(void)
{
    begin();
    wait_for_rounds(3);
    return right;
}

int joins_right(void)
{
    return right && rounds > 0;
}

#ifdef AT_LOAD
__attribute__((constructor)) static void at_load(void)
{
    begin();
    finish();
}
#else
__attribute__((destructor)) static void at_unload(void)
{
    finish();
}
#endif
