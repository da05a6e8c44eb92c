/* mg: multigrid V-cycles for Poisson's equation on a periodic cube. About 60
 * parallel regions per cycle; the fine grid's take hundreds of microseconds,
 * the coarse ones' next to nothing, so that there the barrier is all the work.
 *
 * Each step places new point charges (their sum is zero), starts from u = 0,
 * runs four V-cycles and checks that the residual fell. Damped Jacobi, full
 * weighting and trilinear interpolation write each cell once: the result has
 * the same bits for any team size.
 */
#include "common.h"

enum { LEVELS_MAX = 9, CHARGES = 20, CYCLES = 4 };
static const double DAMP = 6.0 / 7 / 6;   /* weight over the diagonal */

struct level {
    int m;                 /* m x m x m cells, m a power of two */
    double *u, *f, *r;     /* solution, right-hand side, residual */
};
static struct level grid[LEVELS_MAX];
static int levels;         /* grid[0] is the finest, grid[levels - 1] has m = 2 */

static inline long at(int m, int i, int j, int k)
{
    return ((long)(k & (m - 1)) * m + (j & (m - 1))) * m + (i & (m - 1));
}

/* r = f - A u, where A is the 7-point Laplacian (positive definite). */
static void residual(const struct level *g)
{
    const int m = g->m;
#pragma omp parallel for collapse(2) schedule(static)
    for (int k = 0; k < m; k++)
        for (int j = 0; j < m; j++) {
            const double *c = g->u + at(m, 0, j, k);
            const double *n = g->u + at(m, 0, j + 1, k), *s = g->u + at(m, 0, j - 1, k);
            const double *t = g->u + at(m, 0, j, k + 1), *b = g->u + at(m, 0, j, k - 1);
            const double *f = g->f + at(m, 0, j, k);
            double *r = g->r + at(m, 0, j, k);
            for (int i = 0; i < m; i++) {
                double west = c[(i - 1) & (m - 1)], east = c[(i + 1) & (m - 1)];
                r[i] = f[i] - (6 * c[i] - (west + east) - (n[i] + s[i]) - (t[i] + b[i]));
            }
        }
}

/* u += damped residual, `times` times. */
static void smooth(const struct level *g, int times)
{
    const long cells = (long)g->m * g->m * g->m;
    double *u = g->u;
    const double *r = g->r;
    for (int t = 0; t < times; t++) {
        residual(g);
#pragma omp parallel for schedule(static)
        for (long i = 0; i < cells; i++)
            u[i] += DAMP * r[i];
    }
}

/* Right-hand side of the coarser level: full weighting (27 points) of the
 * residual, times 4 for the coarser spacing; its u starts from 0. */
static void restrict_to(const struct level *fine, const struct level *coarse)
{
    const int m = coarse->m, fm = fine->m;
#pragma omp parallel for collapse(2) schedule(static)
    for (int k = 0; k < m; k++)
        for (int j = 0; j < m; j++) {
            for (int i = 0; i < m; i++) {
                double sum = 0;
                for (int dk = -1; dk <= 1; dk++)
                    for (int dj = -1; dj <= 1; dj++) {
                        const double *row = fine->r + at(fm, 0, 2 * j + dj, 2 * k + dk);
                        double w = (dk ? 0.25 : 0.5) * (dj ? 0.25 : 0.5);
                        sum += w * (0.5 * row[2 * i] + 0.25 * (row[(2 * i - 1) & (fm - 1)] + row[2 * i + 1]));
                    }
                coarse->f[at(m, i, j, k)] = 4 * sum;
                coarse->u[at(m, i, j, k)] = 0;
            }
        }
}

/* u of the finer level += trilinear interpolation of the coarser one's. */
static void prolong_from(const struct level *coarse, const struct level *fine)
{
    const int m = fine->m, cm = coarse->m;
#pragma omp parallel for collapse(2) schedule(static)
    for (int k = 0; k < m; k++)
        for (int j = 0; j < m; j++) {
            const double *a = coarse->u + at(cm, 0, j / 2, k / 2);
            const double *b = coarse->u + at(cm, 0, (j + 1) / 2, k / 2);
            const double *c = coarse->u + at(cm, 0, j / 2, (k + 1) / 2);
            const double *d = coarse->u + at(cm, 0, (j + 1) / 2, (k + 1) / 2);
            double *u = fine->u + at(m, 0, j, k);
            for (int i = 0; i < cm; i++) {
                int e = (i + 1) & (cm - 1);
                double here = 0.25 * (a[i] + b[i] + c[i] + d[i]);
                double there = 0.25 * (a[e] + b[e] + c[e] + d[e]);
                u[2 * i] += here;
                u[2 * i + 1] += 0.5 * (here + there);
            }
        }
}

static void v_cycle(void)
{
    for (int l = 0; l < levels - 1; l++) {
        smooth(&grid[l], 1);
        residual(&grid[l]);
        restrict_to(&grid[l], &grid[l + 1]);
    }
    smooth(&grid[levels - 1], 4);
    for (int l = levels - 2; l >= 0; l--) {
        prolong_from(&grid[l + 1], &grid[l]);
        smooth(&grid[l], 2);
    }
}

/* Norm of the finest residual, summed plane by plane. */
static double norm(void)
{
    const struct level *g = &grid[0];
    const long plane = (long)g->m * g->m;
    double part[1 << LEVELS_MAX];
    residual(g);
#pragma omp parallel for schedule(static)
    for (int k = 0; k < g->m; k++) {
        double sum = 0;
        for (long i = 0; i < plane; i++)
            sum += g->r[k * plane + i] * g->r[k * plane + i];
        part[k] = sum;
    }
    return sqrt(sum_in_order(part, g->m));
}

static void place_charges(long step)
{
    const struct level *g = &grid[0];
    const long cells = (long)g->m * g->m * g->m;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < cells; i++)
        g->f[i] = g->u[i] = 0;
    for (int c = 0; c < CHARGES; c++)
        g->f[mix64((uint64_t)(step * CHARGES + c)) % (uint64_t)cells] += c & 1 ? -1 : 1;
}

int main(int argc, char **argv)
{
    struct run run = run_begin("mg", argc, argv);
    const long steps = run.times * run_pick(&run, 1, 110, 180, 620);
    int m = (int)run_pick(&run, 16, 32, 64, 64);
    for (; m >= 2; m /= 2) {
        size_t cells = (size_t)m * (size_t)m * (size_t)m;
        grid[levels++] = (struct level){m, need(cells, 8), need(cells, 8), need(cells, 8)};
    }

    double worst = 0;
    uint64_t hash = 0;
    run_start(&run);
    for (long step = 0; step < steps; step++) {
        place_charges(step);
        double first = norm();
        for (int cycle = 0; cycle < CYCLES; cycle++)
            v_cycle();
        double last = norm();
        worst = fmax(worst, last / first);
        hash = hash_double(hash, last);
    }
    double time_s = run_stop(&run);

    bool good = worst < 0.02;
    if (!good)
        fprintf(stderr, "mg: four cycles left %.3g of the residual, not below 0.02\n", worst);
    m = grid[0].m;
    hash = hash_doubles(hash, grid[0].u, (long)m * m * m);
    return run_end(good, hash, time_s, (double)(steps * CYCLES), "V-cycles");
}
