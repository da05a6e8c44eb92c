/* Many threads on few CPUs: queues between producers and consumers, with signals, broadcasts, timed waits
 * and timed locks, over mutexes of all kinds. What comes out is known beforehand. */
#include "check.h"

#define KINDS 5
#define PAIRS 4
#define ITEMS 3000
#define ROOM 8

static struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t filled, emptied;
    long items[ROOM];
    int used, ends, open;
    long sum, taken;
} queues[KINDS];

static void lock(struct queue *q, int how) {
    for (;;) {
        struct timespec t = in_ns(CLOCK_REALTIME, 20000);
        int result = how % 3 == 0   ? pthread_mutex_lock(&q->mutex)
                     : how % 3 == 1 ? pthread_mutex_timedlock(&q->mutex, &t)
                                    : pthread_mutex_trylock(&q->mutex);
        if (result == 0) return;
        MUST(result == (how % 3 == 1 ? ETIMEDOUT : EBUSY));
        if (how % 3 == 2) sched_yield();
    }
}

static void wait_on(pthread_cond_t *c, struct queue *q, int how) {
    struct timespec t = in_ns(CLOCK_REALTIME, 100000);
    int result = how % 2 ? pthread_cond_wait(c, &q->mutex) : pthread_cond_timedwait(c, &q->mutex, &t);
    MUST(result == 0 || (how % 2 == 0 && result == ETIMEDOUT));
}

static void *produce(void *argument) {
    struct queue *q = argument;
    for (int i = 1; i <= ITEMS; i++) {
        lock(q, i);
        while (q->used == ROOM) wait_on(&q->emptied, q, i);
        q->items[q->used++] = i;
        if (i % 7) pthread_cond_signal(&q->filled);
        pthread_mutex_unlock(&q->mutex);
        if (i % 7 == 0) pthread_cond_broadcast(&q->filled);
    }
    lock(q, 0);
    q->open--;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->mutex);
    return NULL;
}

static void *consume(void *argument) {
    struct queue *q = argument;
    for (int i = 0;; i++) {
        lock(q, i);
        while (q->used == 0 && q->open) wait_on(&q->filled, q, i / 2);
        if (q->used == 0) break;
        q->sum += q->items[--q->used];
        q->taken++;
        pthread_cond_signal(&q->emptied);
        pthread_mutex_unlock(&q->mutex);
    }
    pthread_mutex_unlock(&q->mutex);
    return NULL;
}

int main(void) {
    int types[KINDS] = {-1, PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK};
    pthread_t threads[KINDS][2 * PAIRS];
    for (int k = 0; k < KINDS; k++) {
        pthread_mutexattr_t a;
        pthread_mutexattr_init(&a);
        if (types[k] >= 0) pthread_mutexattr_settype(&a, types[k]);
        MUST(pthread_mutex_init(&queues[k].mutex, &a) == 0);
        queues[k].open = PAIRS;
        for (int i = 0; i < PAIRS; i++) {
            threads[k][2 * i] = start(produce, &queues[k]);
            threads[k][2 * i + 1] = start(consume, &queues[k]);
        }
    }
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < 2 * PAIRS; i++) end(threads[k][i]);
        printf("kind %d: %ld items, sum %ld\n", k, queues[k].taken, queues[k].sum);
        SHOW(pthread_cond_destroy(&queues[k].filled));
        SHOW(pthread_cond_destroy(&queues[k].emptied));
        SHOW(pthread_mutex_destroy(&queues[k].mutex));
    }
    return 0;
}
