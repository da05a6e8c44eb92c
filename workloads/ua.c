/* ua: heat on an unstructured mesh that adapts to a wandering source. Very many
 * tiny regions, atomic additions, locks, sections, and all the loop schedules:
 * hardly any work between two synchronisations.
 *
 * Heat is an integer (fixed point), so that atomic additions commute exactly:
 * each element moves heat between its four corners, the sum over the mesh is
 * conserved to the last unit, and the result is the same for any team size.
 */
#include "common.h"

enum { SIDE_MAX = 128, PATCH_SIDE = 8, PATCHES = PATCH_SIDE * PATCH_SIDE, LEVEL_MAX = 3 };
static const int64_t START = 1 << 20, QUANTUM = 1 << 22;

static int side;                /* side x side nodes and elements, on a torus */
static int elements;
static int (*corner)[4];        /* nodes of each element, in scrambled order */
static int *patch_of;           /* of each element */
static int64_t *heat, *change;  /* of each node */
static unsigned char *level;    /* of each element: does 2^level sub-steps */

struct patch {
    omp_lock_t lock;
    int members, highest;       /* elements above level 0, and their highest level */
    int64_t steepest;
    int floor;                  /* level that the neighbour patches ask for */
};
static struct patch patch[PATCHES];

static void build_mesh(void)
{
#pragma omp parallel for schedule(static)
    for (int e = 0; e < elements; e++) {
        /* Elements are numbered in scrambled order: odd multiplier, power of two. */
        int s = (int)((unsigned)e * 0x9e3779b1u % (unsigned)elements);
        int x = s % side, y = s / side, right = (x + 1) % side, up = (y + 1) % side;
        corner[e][0] = y * side + x;
        corner[e][1] = y * side + right;
        corner[e][2] = up * side + right;
        corner[e][3] = up * side + x;
        patch_of[e] = y * PATCH_SIDE / side * PATCH_SIDE + x * PATCH_SIDE / side;
        level[e] = 0;
    }
    for (int node = 0; node < elements; node++)
        heat[node] = START + (int64_t)(mix64((uint64_t)node) % (uint64_t)START);
    for (int p = 0; p < PATCHES; p++)
        omp_init_lock(&patch[p].lock);
}

/* The sources move, each its own way: heat appears here and vanishes there. */
static void move_sources(long step)
{
    const long speed = 7;
#pragma omp parallel sections
    {
#pragma omp section
        {
            int warm = (int)(mix64((uint64_t)(step / speed)) % (uint64_t)elements);
            for (int c = 0; c < 4; c++)
                heat[corner[warm][c]] += QUANTUM / 4;
        }
#pragma omp section
        for (int p = 0; p < PATCHES; p++) {
            patch[p].members = patch[p].highest = 0;
            patch[p].steepest = 0;
        }
    }
    int cold = (int)(mix64(~(uint64_t)(step / speed)) % (uint64_t)elements);
    for (int c = 0; c < 4; c++)
        heat[corner[cold][c]] -= QUANTUM / 4;
}

/* Heat flows between the corners of each element; atomic additions to nodes. */
static void flow(void)
{
#pragma omp parallel for schedule(dynamic, 64)
    for (int e = 0; e < elements; e++) {
        int64_t t[4], before[4];
        for (int c = 0; c < 4; c++)
            before[c] = t[c] = heat[corner[e][c]];
        for (int sub = 0; sub < 1 << level[e]; sub++)
            for (int c = 0; c < 4; c++) {
                int64_t moved = (t[c] - t[(c + 1) & 3]) >> (4 + level[e]);
                t[c] -= moved;
                t[(c + 1) & 3] += moved;
            }
        for (int c = 0; c < 4; c++) {
            int64_t delta = t[c] - before[c];
            if (delta != 0) {
#pragma omp atomic
                change[corner[e][c]] += delta;
            }
        }
    }
}

static void update_nodes(void)
{
#pragma omp parallel for schedule(static)
    for (int node = 0; node < elements; node++) {
        heat[node] += change[node];
        change[node] = 0;
    }
}

/* Elements choose their level by their gradient and enter steep ones in their
 * patch, under its lock. */
static void adapt(void)
{
#pragma omp parallel for schedule(guided, 32)
    for (int e = 0; e < elements; e++) {
        int64_t low = INT64_MAX, high = INT64_MIN;
        for (int c = 0; c < 4; c++) {
            int64_t h = heat[corner[e][c]];
            low = h < low ? h : low;
            high = h > high ? h : high;
        }
        struct patch *p = &patch[patch_of[e]];
        int want = p->floor;
        while (want < LEVEL_MAX && high - low > START >> (6 - 2 * want))
            want++;
        level[e] = (unsigned char)want;
        if (want > 1) {
            omp_set_lock(&p->lock);
            p->members++;
            p->highest = want > p->highest ? want : p->highest;
            p->steepest = high - low > p->steepest ? high - low : p->steepest;
            omp_unset_lock(&p->lock);
        }
    }
}

/* Neighbour patches differ by one level at most. Almost no work at all. */
static void balance_patches(void)
{
#pragma omp parallel for schedule(runtime)
    for (int p = 0; p < PATCHES; p++) {
        int highest = 0;
        for (int d = 0; d < 4; d++) {
            int x = (p % PATCH_SIDE + (d == 0) + (PATCH_SIDE - 1) * (d == 1)) % PATCH_SIDE;
            int y = (p / PATCH_SIDE + (d == 2) + (PATCH_SIDE - 1) * (d == 3)) % PATCH_SIDE;
            int h = patch[y * PATCH_SIDE + x].highest;
            highest = h > highest ? h : highest;
        }
        patch[p].floor = highest > 1 ? 1 : 0;
    }
}

static int64_t total_heat(void)
{
    int64_t total = 0;
    for (int node = 0; node < elements; node++)
        total += heat[node];
    return total;
}

int main(int argc, char **argv)
{
    struct run run = run_begin("ua", argc, argv);
    side = (int)run_pick(&run, 32, 32, 64, 128);
    const long steps = run.times * run_pick(&run, 40, 2500, 8000, 14000);
    elements = side * side;
    corner = need((size_t)elements, sizeof *corner);
    patch_of = need((size_t)elements, sizeof *patch_of);
    heat = need((size_t)elements, sizeof *heat);
    change = need((size_t)elements, sizeof *change);
    level = need((size_t)elements, sizeof *level);
    build_mesh();
    const int64_t expected = total_heat();

    uint64_t hash = 0;
    run_start(&run);
    for (long step = 0; step < steps; step++) {
        move_sources(step);
        flow();
        update_nodes();
        adapt();
        balance_patches();
        for (int p = 0; p < PATCHES; p += 7)
            hash = hash_word(hash, (uint64_t)patch[p].steepest + (uint64_t)patch[p].members);
    }
    double time_s = run_stop(&run);

    int64_t total = total_heat();
    if (total != expected)
        fprintf(stderr, "ua: %lld units of heat, not %lld\n", (long long)total, (long long)expected);
    for (int node = 0; node < elements; node++)
        hash = hash_word(hash, (uint64_t)heat[node]);
    for (int p = 0; p < PATCHES; p++)
        omp_destroy_lock(&patch[p].lock);
    return run_end(total == expected, hash, time_s, (double)steps, "steps");
}
