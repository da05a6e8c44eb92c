/* sp: alternating-direction implicit time steps with scalar pentadiagonal
 * systems along x, y and z. Eight regions per step with light work per line:
 * each lasts tens to a few hundred microseconds, so barriers matter.
 *
 * The equation is diffusion of second and fourth order with a source that makes
 * a known field `target` the steady state. Every PHASE steps the target moves;
 * by the end of a phase the distance must have fallen. Every line is solved by
 * one thread on its own: same bits for any team size.
 */
#include "common.h"

enum { PHASE = 20, N_MAX = 64 };
static const double NU = 1.0, EPSILON = 0.05;

static int n;                   /* n^3 inner cells; a layer of fixed cells around */
static double *u, *r, *source, *target, *density;
static double dt;               /* of this step */

static inline long at(int i, int j, int k)
{
    return ((long)k * (n + 2) + j) * (n + 2) + i;
}

/* The differences of v along one axis at cell c, the i-th of its line. */
static inline double difference(const double *v, long c, long step, int i)
{
    double second = v[c + step] - 2 * v[c] + v[c - step];
    if (i < 2 || i > n - 1)
        return NU * second;
    double fourth = v[c + 2 * step] - 4 * v[c + step] + 6 * v[c] - 4 * v[c - step] + v[c - 2 * step];
    return NU * second - EPSILON * fourth;
}

#define INNER_CELLS(i, j, k)                \
    for (int k = 1; k <= n; k++)            \
        for (int j = 1; j <= n; j++)        \
            for (int i = 1; i <= n; i++)

/* Sets target, a smooth field that depends on the phase, source = -L target,
 * and the fixed outer cells of u. */
static void move_target(long phase)
{
    const int w = n + 2;
#pragma omp parallel for schedule(static)
    for (int k = 0; k < w; k++)
        for (int j = 0; j < w; j++)
            for (int i = 0; i < w; i++) {
                double x = (double)i / w, y = (double)j / w, z = (double)k / w;
                double s = uniform(5, (uint64_t)phase);
                target[at(i, j, k)] = 1 + x * (1 - x) * s + y * (z - y) * (1 - s) + z * (1 - x) * 0.3;
                bool inside = i >= 1 && i <= n && j >= 1 && j <= n && k >= 1 && k <= n;
                if (!inside)
                    u[at(i, j, k)] = target[at(i, j, k)];
            }
#pragma omp parallel for schedule(static)
    INNER_CELLS(i, j, k) {
        long c = at(i, j, k), y = n + 2, z = y * y;
        source[c] = -(difference(target, c, 1, i) + difference(target, c, y, j) + difference(target, c, z, k));
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
            for (int i = 1; i <= n; i++) {
                double e = u[at(i, j, k)] - target[at(i, j, k)];
                sum += e * e;
            }
        part[k - 1] = sum;
    }
    return sqrt(sum_in_order(part, n));
}

/* r = dt (L u + source) / density, one region per axis and one for the scale. */
static void right_hand_side(void)
{
    const long y = n + 2, z = y * y;
#pragma omp parallel for schedule(static)
    INNER_CELLS(i, j, k)
        r[at(i, j, k)] = source[at(i, j, k)] + difference(u, at(i, j, k), 1, i);
#pragma omp parallel for schedule(static)
    INNER_CELLS(i, j, k)
        r[at(i, j, k)] += difference(u, at(i, j, k), y, j);
#pragma omp parallel for schedule(static)
    INNER_CELLS(i, j, k)
        r[at(i, j, k)] += difference(u, at(i, j, k), z, k);
#pragma omp parallel for schedule(static)
    INNER_CELLS(i, j, k)
        r[at(i, j, k)] *= dt / density[at(i, j, k)];
}

/* Solves (I - dt/density L_d) x = r along one line that starts at cell c. */
static void solve_line(long c, long step)
{
    /* x[i] = value[i] - one[i] x[i+1] - two[i] x[i+2] */
    double value[N_MAX + 2] = {0}, one[N_MAX + 2] = {0}, two[N_MAX + 2] = {0};
    for (int i = 2; i < n + 2; i++, c += step) {
        double s = dt / density[c], far = 0, near = -s * NU, middle = 1 + 2 * s * NU;
        if (i > 2 && i < n + 1) {
            far = s * EPSILON;
            near -= 4 * far;
            middle += 6 * far;
        }
        double left = near - far * one[i - 2];
        double pivot = 1 / (middle - far * two[i - 2] - left * one[i - 1]);
        value[i] = pivot * (r[c] - far * value[i - 2] - left * value[i - 1]);
        one[i] = pivot * (near - left * two[i - 1]);
        two[i] = pivot * far;
    }
    double next = 0, after = 0;
    for (int i = n + 1; i >= 2; i--) {
        c -= step;
        double x = value[i] - one[i] * next - two[i] * after;
        after = next;
        next = x;
        r[c] = x;
    }
}

static void sweep(long step, long along_a, long along_b)
{
    const long first = at(1, 1, 1);
#pragma omp parallel for schedule(static)
    for (int b = 0; b < n; b++)
        for (int a = 0; a < n; a++)
            solve_line(first + a * along_a + b * along_b, step);
}

static void add(void)
{
#pragma omp parallel for schedule(static)
    INNER_CELLS(i, j, k)
        u[at(i, j, k)] += r[at(i, j, k)];
}

/* The step lengths of a phase grow from what suits the roughest error to what
 * suits the smoothest one, twice. */
static double step_length(int step)
{
    const double shortest = 0.3, longest = 0.05 * (n + 1) * (n + 1);
    return shortest * pow(longest / shortest, (double)(step % (PHASE / 2)) / (PHASE / 2 - 1));
}

int main(int argc, char **argv)
{
    struct run run = run_begin("sp", argc, argv);
    n = (int)run_pick(&run, 12, 20, 32, 48);
    const long phases = run.times * run_pick(&run, 1, 38, 80, 105);
    const long cells = (long)(n + 2) * (n + 2) * (n + 2);
    double **field[] = {&u, &r, &source, &target, &density};
    for (int f = 0; f < 5; f++)
        *field[f] = need((size_t)cells, sizeof(double));
    for (long c = 0; c < cells; c++)
        density[c] = 0.9 + 0.2 * uniform(4, (uint64_t)c);

    const long y = n + 2, z = y * y;
    double worst = 0;
    uint64_t hash = 0;
    run_start(&run);
    for (long phase = 0; phase < phases; phase++) {
        move_target(phase);
        double first = error();
        for (int step = 0; step < PHASE; step++) {
            dt = step_length(step);
            right_hand_side();
            sweep(1, y, z);
            sweep(y, 1, z);
            sweep(z, 1, y);
            add();
        }
        double last = error();
        worst = fmax(worst, last / first);
        hash = hash_double(hash, last);
    }
    double time_s = run_stop(&run);

    bool good = worst < 0.05;
    if (!good)
        fprintf(stderr, "sp: a phase left %.3g of the error, not below 0.05\n", worst);
    hash = hash_doubles(hash, u, cells);
    return run_end(good, hash, time_s, (double)(phases * PHASE), "steps");
}
