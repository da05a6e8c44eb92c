/* unsafe_tp: MUST NOT be resized. Each thread keeps the state of its cells in
 * threadprivate memory from region to region. OpenMP promises that only as long
 * as the team keeps its size: with a static schedule the same thread then gets
 * the same cells. After a change some cells go on from a state that is stale or
 * zero, which the program finds out at the end: verified NO, exit 1.
 *
 * Right at any fixed team size: a cell's state is a linear congruential sequence
 * of its own, whose last member is known in closed form.
 */
#include "common.h"

enum { ROUNDS = 16 };
static const uint64_t FACTOR = 0x5851f42d4c957f2du;

/* One word per cell, in every thread: only those of its own cells are used. */
static uint64_t *state;
#pragma omp threadprivate(state)

static long n;
static uint64_t *cell;          /* shared: each cell's latest state */

static inline uint64_t constant(long i)
{
    return mix64((uint64_t)i) | 1;
}

static void time_step(void)
{
#pragma omp parallel
    {
        if (state == NULL)
            state = need((size_t)n, sizeof *state);
#pragma omp for schedule(static)
        for (long i = 0; i < n; i++) {
            uint64_t s = state[i], c = constant(i);
            for (int round = 0; round < ROUNDS; round++)
                s = s * FACTOR + c;
            state[i] = s;
            cell[i] = s;
        }
    }
}

/* The state after `count` rounds from 0, by repeated squaring. */
static uint64_t expected(long i, uint64_t count)
{
    uint64_t factor = FACTOR, add = constant(i), s = 0;
    for (; count > 0; count >>= 1) {
        if (count & 1)
            s = s * factor + add;
        add = add * factor + add;
        factor *= factor;
    }
    return s;
}

int main(int argc, char **argv)
{
    struct run run = run_begin("unsafe_tp", argc, argv);
    n = run_pick(&run, 1L << 12, 1L << 14, 1L << 14, 1L << 15);
    const long steps = run.times * run_pick(&run, 20, 1600, 15000, 31000);
    cell = need((size_t)n, sizeof *cell);

    run_start(&run);
    for (long step = 0; step < steps; step++)
        time_step();
    double time_s = run_stop(&run);

    long wrong = 0;
    uint64_t hash = 0;
    for (long i = 0; i < n; i++) {
        wrong += cell[i] != expected(i, (uint64_t)steps * ROUNDS);
        hash = hash_word(hash, cell[i]);
    }
    if (wrong != 0)
        fprintf(stderr, "unsafe_tp: %ld of %ld cells are wrong: the team size changed\n", wrong, n);
    return run_end(wrong == 0, hash, time_s, (double)steps, "steps");
}
