/* pipeline: POSIX threads, no OpenMP. A source writes blocks of text, WORKERS
 * packers compress them, WORKERS unpackers restore and hash them, a sink adds
 * up. The stages are joined by bounded queues with a mutex and two condition
 * variables each: threads block and wake all the time, none spins.
 *
 * Usage: pipeline [SIZE [WORKERS]]; WORKERS defaults to the online CPUs.
 * Verified: each block arrives exactly once with the hash the source gave it.
 */
#include "common.h"

#include <pthread.h>
#include <unistd.h>

enum { BLOCK = 4096, PACKED_MAX = 2 * BLOCK, DEPTH = 16, WORKERS_MAX = 1024, MATCH_MIN = 4, MATCH_MAX = 130 };

struct item {
    long number;
    uint64_t hash;              /* of the text, by the source */
    uint64_t arrived;           /* of the text, by the unpacker */
    int packed_length;
    unsigned char text[BLOCK], packed[PACKED_MAX];
};

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t not_full, not_empty;
    struct item *slot[DEPTH];
    int first, count, writers;  /* it ends when no writer is left and it is empty */
};

static struct queue spare, written, packed, restored;
static long blocks;

/* ---- queues ---------------------------------------------------------------- */

static void queue_open(struct queue *q, int writers)
{
    *q = (struct queue){.writers = writers};
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->not_full, NULL);
    pthread_cond_init(&q->not_empty, NULL);
}

static void put(struct queue *q, struct item *item)
{
    pthread_mutex_lock(&q->mutex);
    while (q->count == DEPTH)
        pthread_cond_wait(&q->not_full, &q->mutex);
    q->slot[(q->first + q->count++) % DEPTH] = item;
    pthread_cond_signal(&q->not_empty);
    pthread_mutex_unlock(&q->mutex);
}

/* NULL when the queue has ended. */
static struct item *take(struct queue *q)
{
    struct item *item = NULL;
    pthread_mutex_lock(&q->mutex);
    while (q->count == 0 && q->writers > 0)
        pthread_cond_wait(&q->not_empty, &q->mutex);
    if (q->count > 0) {
        item = q->slot[q->first];
        q->first = (q->first + 1) % DEPTH;
        q->count--;
        pthread_cond_signal(&q->not_full);
    }
    pthread_mutex_unlock(&q->mutex);
    return item;
}

/* One writer leaves. */
static void leave(struct queue *q)
{
    pthread_mutex_lock(&q->mutex);
    if (--q->writers == 0)
        pthread_cond_broadcast(&q->not_empty);
    pthread_mutex_unlock(&q->mutex);
}

/* ---- the work -------------------------------------------------------------- */

static uint64_t hash_text(const unsigned char *text)
{
    uint64_t hash = 0, word;
    for (int i = 0; i < BLOCK; i += 8) {
        memcpy(&word, text + i, 8);
        hash = hash_word(hash, word);
    }
    return hash;
}

/* Words of two to nine letters out of 256, a function of the block's number. */
static void write_text(struct item *item)
{
    for (int at = 0, word = 0; at < BLOCK; word++) {
        uint64_t letters = mix64(mix64((uint64_t)item->number * BLOCK + (uint64_t)word) % 256);
        int length = 2 + (int)(letters >> 61);
        for (int l = 0; l < length && at < BLOCK; l++)
            item->text[at++] = (unsigned char)('a' + (letters >> (5 * l)) % 26);
        if (at < BLOCK)
            item->text[at++] = ' ';
    }
}

static inline unsigned hash_four(const unsigned char *p)
{
    uint32_t word;
    memcpy(&word, p, 4);
    return word * 0x9e3779b1u >> 21;
}

/* Code byte 0..126: that many + 1 literals follow. 127..253: a match of
 * MATCH_MIN.. bytes, two bytes of distance follow. */
static int pack(const unsigned char *text, unsigned char *out)
{
    int16_t seen[1 << 11];
    memset(seen, -1, sizeof seen);
    int at = 0, literal = 0, length = 0;
    while (at <= BLOCK) {
        int match = 0, from = 0;
        if (at <= BLOCK - MATCH_MIN) {
            unsigned h = hash_four(text + at);
            from = seen[h];
            seen[h] = (int16_t)at;
            if (from >= 0)
                while (match < MATCH_MAX && at + match < BLOCK && text[from + match] == text[at + match])
                    match++;
        }
        if (match >= MATCH_MIN || at == BLOCK || at - literal == 127) {
            if (at > literal) {
                out[length++] = (unsigned char)(at - literal - 1);
                memcpy(out + length, text + literal, (size_t)(at - literal));
                length += at - literal;
                literal = at;
            }
            if (at == BLOCK)
                break;
        }
        if (match >= MATCH_MIN) {
            out[length++] = (unsigned char)(127 + match - MATCH_MIN);
            out[length++] = (unsigned char)((at - from) >> 8);
            out[length++] = (unsigned char)((at - from) & 255);
            at += match;
            literal = at;
        } else {
            at++;
        }
    }
    return length;
}

/* False when the packed form is broken. */
static bool unpack(const unsigned char *in, int length, unsigned char *text)
{
    int at = 0;
    for (int i = 0; i < length;) {
        int code = in[i++];
        if (code < 127) {
            if (i + code + 1 > length || at + code + 1 > BLOCK)
                return false;
            memcpy(text + at, in + i, (size_t)code + 1);
            at += code + 1;
            i += code + 1;
        } else {
            int match = code - 127 + MATCH_MIN;
            if (i + 2 > length || at + match > BLOCK)
                return false;
            int from = at - (in[i] << 8 | in[i + 1]);
            i += 2;
            if (from < 0)
                return false;
            for (; match > 0; match--)
                text[at++] = text[from++];
        }
    }
    return at == BLOCK;
}

/* ---- the stages ------------------------------------------------------------ */

static void *source(void *unused)
{
    for (long number = 0; number < blocks; number++) {
        struct item *item = take(&spare);
        item->number = number;
        write_text(item);
        item->hash = hash_text(item->text);
        put(&written, item);
    }
    leave(&written);
    return unused;
}

static void *packer(void *unused)
{
    for (struct item *item; (item = take(&written)) != NULL; put(&packed, item)) {
        item->packed_length = pack(item->text, item->packed);
        memset(item->text, 0, BLOCK);
    }
    leave(&packed);
    return unused;
}

static void *unpacker(void *unused)
{
    for (struct item *item; (item = take(&packed)) != NULL; put(&restored, item))
        item->arrived = unpack(item->packed, item->packed_length, item->text) ? hash_text(item->text) : 0;
    leave(&restored);
    return unused;
}

static pthread_t start(void *(*stage)(void *))
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, stage, NULL);
    if (error != 0) {
        fprintf(stderr, "pipeline: cannot start a thread: %s: give fewer WORKERS\n", strerror(error));
        exit(3);
    }
    return thread;
}

/* WORKERS: the argument, or the online CPUs. */
static int worker_count(const char *text)
{
    if (text == NULL) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online < 1 ? 1 : online > WORKERS_MAX ? WORKERS_MAX : (int)online;
    }
    char *end;
    long workers = strtol(text, &end, 10);
    if (text[0] < '1' || text[0] > '9' || *end != '\0' || workers > WORKERS_MAX) {
        fprintf(stderr, "pipeline: bad number of workers '%s': give 1 to %d\n", text, WORKERS_MAX);
        exit(2);
    }
    return (int)workers;
}

int main(int argc, char **argv)
{
    if (argc > 3) {
        fprintf(stderr, "pipeline: too many arguments: usage: pipeline [T|S|W|A|W*N [WORKERS]]\n");
        return 2;
    }
    struct run run = run_parse("pipeline", argc > 1 ? argv[1] : NULL);
    const int workers = worker_count(argc > 2 ? argv[2] : NULL);
    blocks = run.times * run_pick(&run, 200, 5000, 40000, 150000);
    run_title(&run, workers);

    queue_open(&spare, 1);
    queue_open(&written, 1);
    queue_open(&packed, workers);
    queue_open(&restored, workers);
    struct item *items = need(DEPTH, sizeof *items);
    for (int i = 0; i < DEPTH; i++)
        put(&spare, &items[i]);
    pthread_t *thread = need((size_t)workers * 2 + 1, sizeof *thread);

    run_start(&run);
    int threads = 0;
    thread[threads++] = start(source);
    for (int w = 0; w < workers; w++) {
        thread[threads++] = start(packer);
        thread[threads++] = start(unpacker);
    }
    /* The sink: sums commute, so the order of arrival does not matter. */
    uint64_t sum = 0, numbers = 0;
    long arrived = 0, wrong = 0;
    for (struct item *item; (item = take(&restored)) != NULL; put(&spare, item)) {
        arrived++;
        wrong += item->arrived != item->hash;
        numbers += mix64((uint64_t)item->number);
        sum += mix64(item->arrived ^ mix64((uint64_t)item->number)) + (uint64_t)item->packed_length;
    }
    double time_s = run_stop(&run);
    for (int t = 0; t < threads; t++)
        pthread_join(thread[t], NULL);

    for (long number = 0; number < blocks; number++)
        numbers -= mix64((uint64_t)number);
    bool good = arrived == blocks && wrong == 0 && numbers == 0;
    if (!good)
        fprintf(stderr, "pipeline: %ld of %ld blocks arrived, %ld of them wrong\n", arrived, blocks, wrong);
    return run_end(good, sum, time_s, (double)blocks, "blocks");
}
