/* pthread_cond_*: results, order, clocks, cancellation, destruction, and every kind of mutex. */
#include "check.h"

struct place {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int waiting, tokens, through;
    int wakes_at_will; /* a shared condition variable with a mutex that is not */
    long order[64];
    pid_t tids[64];
};

static void *waits(void *argument) {
    struct place *p = argument;
    MUST(pthread_mutex_lock(&p->mutex) == 0);
    int me = p->waiting++;
    p->tids[me] = gettid();
    while (p->tokens == 0) {
        int result = pthread_cond_wait(&p->cond, &p->mutex);
        if (result) return (void *)name(result);
    }
    p->tokens--;
    p->order[p->through++] = me;
    int result = pthread_mutex_unlock(&p->mutex);
    return (void *)name(result);
}

/* Until n threads wait: each has released the mutex, and sleeps, if its wait has no reason to end. */
static void wait_for_sleepers(struct place *p, int n) {
    for (int ready = 0; !ready;) {
        pthread_mutex_lock(&p->mutex);
        ready = p->waiting >= n;
        for (int i = 0; ready && !p->wakes_at_will && i < n; i++) ready = sleeps(p->tids[i]);
        pthread_mutex_unlock(&p->mutex);
        if (!ready) usleep(200);
    }
}

static void make(struct place *p, int type, int shared, clockid_t clock) {
    memset(p, 0, sizeof *p);
    pthread_mutexattr_t m;
    pthread_mutexattr_init(&m);
    if (type >= 0) pthread_mutexattr_settype(&m, type);
    pthread_mutexattr_setpshared(&m, shared & 1);
    MUST(pthread_mutex_init(&p->mutex, &m) == 0);
    pthread_condattr_t c;
    pthread_condattr_init(&c);
    pthread_condattr_setpshared(&c, shared >> 1);
    MUST(pthread_condattr_setclock(&c, clock) == 0);
    memset(&p->cond, 0xa5, sizeof p->cond);
    p->wakes_at_will = shared == 2;
    SHOW(pthread_cond_init(&p->cond, &c));
}

static void all(int type, int shared, clockid_t clock) {
    printf("-- mutex type %d, sharing %d, clock %d\n", type, shared, clock);
    struct place place, *p = &place;
    make(p, type, shared, clock);
    SHOW(pthread_cond_signal(&p->cond));
    SHOW(pthread_cond_broadcast(&p->cond));

    /* Times that have passed, that pass, and that are none. */
    MUST(pthread_mutex_lock(&p->mutex) == 0);
    struct timespec past = {1, 0}, never = {-1, 0}, bad = {0, SECOND}, soon = in_ns(clock, SECOND / 50);
    SHOW(pthread_cond_timedwait(&p->cond, &p->mutex, &bad));
    SHOW(pthread_cond_clockwait(&p->cond, &p->mutex, clock, &bad));
    SHOW(pthread_cond_clockwait(&p->cond, &p->mutex, CLOCK_PROCESS_CPUTIME_ID, &past));
    if (shared != 2) { /* else a wait may end at any time */
        SHOW(pthread_cond_timedwait(&p->cond, &p->mutex, &past));
        SHOW(pthread_cond_timedwait(&p->cond, &p->mutex, &never));
    }
    int result;
    while ((result = pthread_cond_timedwait(&p->cond, &p->mutex, &soon)) == 0) ;
    printf("soon: %s, after its time: %d\n", name(result), has_passed(clock, &soon));
    clockid_t other = clock == CLOCK_REALTIME ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    soon = in_ns(other, SECOND / 50);
    while ((result = pthread_cond_clockwait(&p->cond, &p->mutex, other, &soon)) == 0) ;
    printf("soon, on the other clock: %s, after its time: %d\n", name(result), has_passed(other, &soon));
    MUST(pthread_mutex_unlock(&p->mutex) == 0);

    /* One signal, one waiter; then all. */
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) threads[i] = start(waits, p);
    wait_for_sleepers(p, 6);
    for (int n = 1; n <= 3; n++) {
        MUST(pthread_mutex_lock(&p->mutex) == 0);
        p->tokens++;
        SHOW(pthread_cond_signal(&p->cond));
        MUST(pthread_mutex_unlock(&p->mutex) == 0);
        for (int through = 0; through < n; usleep(200)) {
            pthread_mutex_lock(&p->mutex);
            through = p->through;
            pthread_mutex_unlock(&p->mutex);
        }
    }
    MUST(pthread_mutex_lock(&p->mutex) == 0);
    p->tokens += 3;
    MUST(pthread_mutex_unlock(&p->mutex) == 0);
    SHOW(pthread_cond_broadcast(&p->cond)); /* without the mutex */
    for (int i = 0; i < 6; i++) printf("thread: %s\n", (char *)end(threads[i]));
    printf("tokens left %d\n", p->tokens);
    SHOW(pthread_cond_destroy(&p->cond));
    SHOW(pthread_mutex_destroy(&p->mutex));
}

/* A cancelled waiter has the mutex in its handlers, and a signal that had chosen it is not lost. */
static void handler(void *argument) {
    struct place *p = argument;
    printf("in the handler the mutex is busy: %s\n", name(pthread_mutex_trylock(&p->mutex)));
    p->through++;
    pthread_mutex_unlock(&p->mutex);
}
static void *cancelled(void *argument) {
    struct place *p = argument;
    pthread_mutex_lock(&p->mutex);
    pthread_cleanup_push(handler, p);
    p->tids[p->waiting++] = gettid();
    for (;;) pthread_cond_wait(&p->cond, &p->mutex);
    pthread_cleanup_pop(0);
    return NULL;
}
static void *cancelled_timed(void *argument) {
    struct place *p = argument;
    struct timespec t = in_ns(CLOCK_REALTIME, 1000 * SECOND);
    pthread_mutex_lock(&p->mutex);
    pthread_cleanup_push(handler, p);
    p->tids[p->waiting++] = gettid();
    for (;;) pthread_cond_timedwait(&p->cond, &p->mutex, &t);
    pthread_cleanup_pop(0);
    return NULL;
}
static void *cancels_itself(void *argument) {
    struct place *p = argument;
    pthread_cancel(pthread_self());
    return cancelled(p);
}
static void *with_cancellation_off(void *argument) {
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    return waits(argument);
}

static void cancellation(int type, int shared) {
    printf("-- cancellation, mutex type %d, sharing %d\n", type, shared);
    struct place place, *p = &place;
    void *(*victims[])(void *) = {cancelled, cancelled_timed, cancels_itself};
    for (int i = 0; i < 3; i++) {
        make(p, type, shared, CLOCK_REALTIME);
        pthread_t victim = start(victims[i], p);
        if (i < 2) wait_for_sleepers(p, 1);
        if (i < 2) pthread_cancel(victim);
        printf("cancelled: %d, ", end(victim) == PTHREAD_CANCELED);
        printf("handlers run: %d\n", p->through);
        SHOW(pthread_mutex_trylock(&p->mutex));
        pthread_mutex_unlock(&p->mutex);
        SHOW(pthread_cond_destroy(&p->cond));
    }
    make(p, type, shared, CLOCK_REALTIME);
    pthread_t deaf = start(with_cancellation_off, p);
    wait_for_sleepers(p, 1);
    pthread_cancel(deaf);
    pthread_mutex_lock(&p->mutex);
    p->tokens = 1;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mutex);
    printf("with cancellation off: %s\n", (char *)end(deaf));
}

/* Many times one of two waiters is cancelled while it is signalled: the other one must get the signal,
 * if the first did not. */
static int served;
static void quiet_handler(void *argument) { pthread_mutex_unlock(&((struct place *)argument)->mutex); }
static void *takes_a_token(void *argument) {
    struct place *p = argument;
    pthread_mutex_lock(&p->mutex);
    pthread_cleanup_push(quiet_handler, p);
    p->waiting++;
    while (p->tokens == 0) pthread_cond_wait(&p->cond, &p->mutex);
    p->tokens--;
    served++;
    pthread_cleanup_pop(1);
    return NULL;
}
static void signal_and_cancel(void) {
    printf("-- a signal and a cancellation at once\n");
    for (int turn = 0; turn < 300; turn++) {
        struct place place, *p = &place;
        memset(p, 0, sizeof *p);
        served = 0;
        pthread_t first = start(takes_a_token, p);
        for (int there = 0; !there;) {
            pthread_mutex_lock(&p->mutex);
            there = p->waiting == 1;
            pthread_mutex_unlock(&p->mutex);
        }
        pthread_t second = start(takes_a_token, p);
        for (int there = 0; !there;) {
            pthread_mutex_lock(&p->mutex);
            there = p->waiting == 2;
            pthread_mutex_unlock(&p->mutex);
        }
        pthread_mutex_lock(&p->mutex);
        p->tokens = 1;
        pthread_mutex_unlock(&p->mutex);
        if (turn % 2) pthread_cancel(first), pthread_cond_signal(&p->cond);
        else pthread_cond_signal(&p->cond), pthread_cancel(first);
        /* Either the first has the token, or the second gets it. */
        if (end(first) != PTHREAD_CANCELED) {
            MUST(served == 1);
            pthread_mutex_lock(&p->mutex);
            p->tokens++;
            pthread_cond_signal(&p->cond);
            pthread_mutex_unlock(&p->mutex);
        }
        end(second);
        MUST(p->tokens == 0);
        MUST(pthread_cond_destroy(&p->cond) == 0);
    }
    printf("no signal was lost\n");
}

/* Who has sent a broadcast may destroy the condition variable at once and use its memory. */
static void *leaves(void *argument) {
    struct place *p = argument;
    pthread_mutex_lock(&p->mutex);
    p->waiting++;
    while (!p->tokens) pthread_cond_wait(&p->cond, &p->mutex);
    p->through++;
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}
static void destruction(void) {
    printf("-- destruction right after a broadcast\n");
    for (int turn = 0; turn < 200; turn++) {
        struct place place, *p = &place;
        memset(p, 0, sizeof *p);
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) threads[i] = start(leaves, p);
        for (int there = 0; !there;) {
            pthread_mutex_lock(&p->mutex);
            there = p->waiting == 4;
            if (there) {
                p->tokens = 1;
                pthread_cond_broadcast(&p->cond);
            }
            pthread_mutex_unlock(&p->mutex);
        }
        MUST(pthread_cond_destroy(&p->cond) == 0);
        memset(&p->cond, 0x5a, sizeof p->cond);
        for (int i = 0; i < 4; i++) end(threads[i]);
        for (unsigned i = 0; i < sizeof p->cond; i++) MUST(((unsigned char *)&p->cond)[i] == 0x5a);
        MUST(p->through == 4);
    }
    printf("nobody came back to it\n");
}

/* The mutex of a wait must be held, where it can tell. */
static void not_held(void) {
    printf("-- without the mutex\n");
    pthread_mutex_t m = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    pthread_cond_t c = PTHREAD_COND_INITIALIZER;
    SHOW(pthread_cond_wait(&c, &m));
    struct timespec soon = in_ns(CLOCK_REALTIME, SECOND / 50);
    SHOW(pthread_cond_timedwait(&c, &m, &soon));
    SHOW(pthread_cond_destroy(&c));
}

/* A recursive mutex that is held twice stays held: nobody else can come in. */
static void held_twice(void) {
    printf("-- held twice\n");
    pthread_mutex_t m = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    pthread_cond_t c = PTHREAD_COND_INITIALIZER;
    MUST(pthread_mutex_lock(&m) == 0 && pthread_mutex_lock(&m) == 0);
    struct timespec soon = in_ns(CLOCK_REALTIME, SECOND / 50);
    SHOW(pthread_cond_timedwait(&c, &m, &soon));
    SHOW(pthread_mutex_unlock(&m));
    SHOW(pthread_mutex_unlock(&m));
    SHOW(pthread_mutex_unlock(&m));
}

/* Handlers of signals run while a thread waits, and do not end the wait. */
static _Atomic int handled;
static void on_signal(int signal) { (void)signal; handled++; }
static void signals(void) {
    printf("-- signals\n");
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    struct place place, *p = &place;
    memset(p, 0, sizeof *p);
    pthread_t thread = start(waits, p);
    wait_for_sleepers(p, 1);
    for (int i = 1; i <= 5; i++) {
        pthread_kill(thread, SIGUSR1);
        UNTIL(handled >= i);
    }
    errno = 55;
    pthread_mutex_lock(&p->mutex);
    p->tokens = 1;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mutex);
    printf("%s after %d signals, errno %d\n", (char *)end(thread), handled, errno);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int types[] = {-1, PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK};
    for (int i = 0; i < 5; i++)
        for (int shared = 0; shared < 4; shared++) {
            all(types[i], shared, CLOCK_REALTIME);
            all(types[i], shared, CLOCK_MONOTONIC);
            cancellation(types[i], shared);
        }
    signal_and_cancel();
    destruction();
    not_held();
    held_twice();
    signals();
    return 0;
}
