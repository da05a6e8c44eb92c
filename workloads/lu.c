/* lu: symmetric successive over-relaxation, pipelined. One parallel region per
 * time step. Cell (i,j,k) of the lower sweep needs (i-1,j,k), (i,j-1,k) and
 * (i,j,k-1): each thread owns a block of rows j and goes through the planes k,
 * always one plane behind the thread below. It waits for that thread by SPINNING
 * on a flag in memory, without pause and without yielding: what no runtime
 * setting can cure when there are more threads than CPUs.
 *
 * Each cell is computed once from finished neighbours, so the result has the
 * same bits for any team size, chosen per region. Flags belong to rows, not to
 * threads, and count upwards through the whole run: nothing to reset, and
 * nothing is sized by the team.
 */
#include "common.h"

enum { C = 5, PHASE = 20, N_MAX = 64 };
static const double DT = 20, NU = 1.0, SPEED = 0.3, DECAY = 0.4;

typedef double vec[C];
typedef double mat[C][C];

static int n;                   /* n^3 inner cells; a layer of fixed cells around */
static vec *u, *r, *source, *target;
static mat J, K;                /* advection and reaction matrices */
static mat inverse;             /* of the diagonal block I/DT + 6 NU I + K */

/* done[j]: how far the block that ends (lower sweep) or starts (upper sweep)
 * with row j has come. A cache line each. */
static struct { _Alignas(64) atomic_long ticket; } done[N_MAX + 2];

static inline long at(int i, int j, int k)
{
    return ((long)k * (n + 2) + j) * (n + 2) + i;
}

static void matrices(void)
{
    mat d;
    for (int a = 0; a < C; a++)
        for (int b = 0; b < C; b++) {
            J[a][b] = SPEED * ((a == b) + 0.2 / (1 + abs(a - b)));
            K[a][b] = DECAY * ((a == b ? 1 : 0) + (a < b ? 0.1 : a > b ? -0.1 : 0));
            d[a][b] = (a == b ? 1 / DT + 6 * NU : 0) + K[a][b];
            inverse[a][b] = a == b;
        }
    for (int p = 0; p < C; p++) {
        double pivot = 1 / d[p][p];
        for (int b = 0; b < C; b++) {
            d[p][b] *= pivot;
            inverse[p][b] *= pivot;
        }
        for (int a = 0; a < C; a++) {
            double factor = d[a][p];
            for (int b = 0; b < C && a != p; b++) {
                d[a][b] -= factor * d[p][b];
                inverse[a][b] -= factor * inverse[p][b];
            }
        }
    }
}

static inline void add_product(vec out, const mat m, const vec v, double factor)
{
    for (int a = 0; a < C; a++) {
        double sum = 0;
        for (int b = 0; b < C; b++)
            sum += m[a][b] * v[b];
        out[a] += factor * sum;
    }
}

/* out = L v at one cell: diffusion, advection along all axes, reaction. */
static void apply(vec *v, long c, vec out)
{
    const long y = n + 2, z = y * y;
    vec gradient;
    for (int a = 0; a < C; a++) {
        double up = v[c + 1][a] + v[c + y][a] + v[c + z][a];
        double down = v[c - 1][a] + v[c - y][a] + v[c - z][a];
        out[a] = NU * (up + down - 6 * v[c][a]);
        gradient[a] = 0.5 * (up - down);
    }
    add_product(out, J, gradient, -1);
    add_product(out, K, v[c], -1);
}

/* Sets target, a smooth field that depends on the phase, source = -L target,
 * and the fixed outer cells of u. */
static void move_target(long phase)
{
    const int w = n + 2;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int k = 0; k < w; k++)
            for (int j = 0; j < w; j++)
                for (int i = 0; i < w; i++) {
                    double x = (double)i / w, y = (double)j / w, z = (double)k / w;
                    bool inside = i >= 1 && i <= n && j >= 1 && j <= n && k >= 1 && k <= n;
                    for (int a = 0; a < C; a++) {
                        double s = uniform((uint64_t)a, (uint64_t)phase);
                        target[at(i, j, k)][a] = 1 + x * (1 - x) * s + y * (z - y) * (1 - s) + z * (1 - x) * 0.3;
                        if (!inside)
                            u[at(i, j, k)][a] = target[at(i, j, k)][a];
                    }
                }
#pragma omp for schedule(static)
        for (int k = 1; k <= n; k++)
            for (int j = 1; j <= n; j++)
                for (int i = 1; i <= n; i++) {
                    vec out;
                    apply(target, at(i, j, k), out);
                    for (int a = 0; a < C; a++)
                        source[at(i, j, k)][a] = -out[a];
                }
    }
}

/* Distance of u from the target, summed plane by plane. */
static double error(void)
{
    double part[N_MAX];
#pragma omp parallel for schedule(static)
    for (int k = 1; k <= n; k++) {
        double sum = 0;
        for (int j = 1; j <= n; j++)
            for (int i = 1; i <= n; i++)
                for (int a = 0; a < C; a++) {
                    double e = u[at(i, j, k)][a] - target[at(i, j, k)][a];
                    sum += e * e;
                }
        part[k - 1] = sum;
    }
    return sqrt(sum_in_order(part, n));
}

/* Spins, without pause, until row j's block has come as far as `ticket`. */
static inline void wait_for(int j, long ticket)
{
    while (atomic_load_explicit(&done[j].ticket, memory_order_acquire) < ticket)
        ;
}

static inline void publish(int j, long ticket)
{
    atomic_store_explicit(&done[j].ticket, ticket, memory_order_release);
}

/* One row of a sweep. `side` is -1 for the lower sweep (neighbours at -1), +1
 * for the upper one. The lower one replaces r by D^-1 (r - L r), the upper one
 * by r - D^-1 U r. */
static inline void relax_row(int j, int k, int side)
{
    const long y = n + 2, z = y * y;
    for (int s = 1; s <= n; s++) {
        long c = at(side < 0 ? s : n + 1 - s, j, k);
        vec near, sum;
        for (int a = 0; a < C; a++) {
            near[a] = r[c + side][a] + r[c + side * y][a] + r[c + side * z][a];
            sum[a] = NU * near[a] + (side < 0 ? r[c][a] : 0);
        }
        add_product(sum, J, near, -0.5 * side);
        if (side < 0)
            for (int a = 0; a < C; a++)
                r[c][a] = 0;
        add_product(r[c], inverse, sum, 1);
    }
}

static void time_step(long step)
{
#pragma omp parallel
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int from = 1 + n * thread / team, to = 1 + n * (thread + 1) / team;
        const long lower = 2 * step * n, upper = lower + n;
#pragma omp for schedule(static)
        for (int k = 1; k <= n; k++)
            for (int j = 1; j <= n; j++)
                for (int i = 1; i <= n; i++) {
                    long c = at(i, j, k);
                    apply(u, c, r[c]);
                    for (int a = 0; a < C; a++)
                        r[c][a] += source[c][a];
                }

        for (int k = 1; k <= n && from < to; k++) {
            if (from > 1)
                wait_for(from - 1, lower + k);
            for (int j = from; j < to; j++)
                relax_row(j, k, -1);
            publish(to - 1, lower + k);
        }
#pragma omp barrier
        for (int k = 1; k <= n && from < to; k++) {
            if (to <= n)
                wait_for(to, upper + k);
            for (int j = to - 1; j >= from; j--)
                relax_row(j, n + 1 - k, +1);
            publish(from, upper + k);
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int k = 1; k <= n; k++)
            for (int j = 1; j <= n; j++)
                for (int i = 1; i <= n; i++)
                    for (int a = 0; a < C; a++)
                        u[at(i, j, k)][a] += r[at(i, j, k)][a];
    }
}

int main(int argc, char **argv)
{
    struct run run = run_begin("lu", argc, argv);
    n = (int)run_pick(&run, 12, 20, 32, 40);
    const long phases = run.times * run_pick(&run, 1, 20, 44, 85);
    const long cells = (long)(n + 2) * (n + 2) * (n + 2);
    vec **field[] = {&u, &r, &source, &target};
    for (int f = 0; f < 4; f++)
        *field[f] = need((size_t)cells, sizeof(vec));
    matrices();

    double worst = 0;
    uint64_t hash = 0;
    run_start(&run);
    for (long phase = 0; phase < phases; phase++) {
        move_target(phase);
        double first = error();
        for (int step = 0; step < PHASE; step++)
            time_step(phase * PHASE + step);
        double last = error();
        worst = fmax(worst, last / first);
        hash = hash_double(hash, last);
    }
    double time_s = run_stop(&run);

    bool good = worst < 0.02;
    if (!good)
        fprintf(stderr, "lu: a phase left %.3g of the error, not below 0.02\n", worst);
    hash = hash_doubles(hash, &u[0][0], C * cells);
    return run_end(good, hash, time_s, (double)(phases * PHASE), "steps");
}
