/* bt: alternating-direction implicit time steps with 5x5 block-tridiagonal
 * systems along x, y and z. Five regions per step; the three sweeps do heavy
 * work per line and last milliseconds.
 *
 * The equations are five coupled advection-diffusion-reaction equations with a
 * source that makes a known field `target` their steady state. Every PHASE steps
 * the target moves; by the end of a phase the distance must have fallen.
 * Every line is solved by one thread on its own: same bits for any team size.
 */
#include "common.h"

enum { C = 5, PHASE = 10, N_MAX = 64 };
static const double NU = 1.0, SPEED = 0.3;

typedef double vec[C];
typedef double mat[C][C];

static int n;                   /* n^3 inner cells; a layer of fixed cells around */
static vec *u, *r, *source, *target;
static double *wind;            /* advection speed of each cell */
static mat J, K;                /* advection and reaction matrices */
static double dt;               /* of this step */

static inline long at(int i, int j, int k)
{
    return ((long)k * (n + 2) + j) * (n + 2) + i;
}

static void matrices(void)
{
    for (int a = 0; a < C; a++)
        for (int b = 0; b < C; b++) {
            J[a][b] = (a == b) + 0.2 / (1 + abs(a - b));
            K[a][b] = 0.02 * ((a == b ? 4 : 0) + (a < b ? 0.5 : a > b ? -0.5 : 0));
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
    const long step[3] = {1, n + 2, (long)(n + 2) * (n + 2)};
    vec gradient = {0};
    for (int a = 0; a < C; a++)
        out[a] = -6 * NU * v[c][a];
    for (int d = 0; d < 3; d++)
        for (int a = 0; a < C; a++) {
            out[a] += NU * (v[c + step[d]][a] + v[c - step[d]][a]);
            gradient[a] += 0.5 * (v[c + step[d]][a] - v[c - step[d]][a]);
        }
    add_product(out, J, gradient, -wind[c]);
    add_product(out, K, v[c], -1);
}

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
                for (int a = 0; a < C; a++) {
                    double s = 0.3 * (double)(phase % 1000) + a;
                    /* Parabolas: smooth and cheap. */
                    target[at(i, j, k)][a] = 1 + x * (1 - x) * (s - floor(s)) + y * (z - y) * 0.5 + z * (1 - x) * (a + 1) * 0.1;
                }
                bool inside = i >= 1 && i <= n && j >= 1 && j <= n && k >= 1 && k <= n;
                if (!inside || phase == 0)
                    for (int a = 0; a < C; a++)
                        u[at(i, j, k)][a] = inside ? 0 : target[at(i, j, k)][a];
            }
#pragma omp parallel for schedule(static)
    for (int k = 1; k <= n; k++)
        for (int j = 1; j <= n; j++)
            for (int i = 1; i <= n; i++) {
                vec lap;
                apply(target, at(i, j, k), lap);
                for (int a = 0; a < C; a++)
                    source[at(i, j, k)][a] = -lap[a];
            }
}

/* r = dt (L u + source) */
static void right_hand_side(void)
{
#pragma omp parallel for schedule(static)
    for (int k = 1; k <= n; k++)
        for (int j = 1; j <= n; j++)
            for (int i = 1; i <= n; i++) {
                long c = at(i, j, k);
                apply(u, c, r[c]);
                for (int a = 0; a < C; a++)
                    r[c][a] = dt * (r[c][a] + source[c][a]);
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

/* Replaces [right | rhs] by B^-1 [right | rhs]; B is destroyed. No pivoting:
 * B dominates its diagonal. */
static void eliminate(mat B, mat right, vec rhs)
{
    for (int p = 0; p < C; p++) {
        double inverse = 1 / B[p][p];
        for (int b = p + 1; b < C; b++)
            B[p][b] *= inverse;
        for (int b = 0; b < C; b++)
            right[p][b] *= inverse;
        rhs[p] *= inverse;
        for (int a = 0; a < C; a++) {
            if (a == p)
                continue;
            double factor = B[a][p];
            for (int b = p + 1; b < C; b++)
                B[a][b] -= factor * B[p][b];
            for (int b = 0; b < C; b++)
                right[a][b] -= factor * right[p][b];
            rhs[a] -= factor * rhs[p];
        }
    }
}

/* Solves (I - dt L_d) x = r along one line that starts at cell c; in place. */
static void solve_line(long c, long step)
{
    mat upper[N_MAX];   /* B^-1 C of each cell: what remains above the diagonal */
    for (int i = 0; i < n; i++, c += step) {
        mat lower, B;
        double side = dt * 0.5 * wind[c];
        for (int a = 0; a < C; a++)
            for (int b = 0; b < C; b++) {
                double same = a == b;
                lower[a][b] = -dt * NU * same - side * J[a][b];
                upper[i][a][b] = -dt * NU * same + side * J[a][b];
                B[a][b] = same * (1 + 2 * dt * NU) + dt / 3 * K[a][b];
            }
        if (i > 0) {
            for (int a = 0; a < C; a++)
                for (int b = 0; b < C; b++) {
                    double sum = 0;
                    for (int m = 0; m < C; m++)
                        sum += lower[a][m] * upper[i - 1][m][b];
                    B[a][b] -= sum;
                }
            add_product(r[c], lower, r[c - step], -1);
        }
        eliminate(B, upper[i], r[c]);
    }
    for (int i = n - 2; i >= 0; i--) {
        c = c - step;
        add_product(r[c - step], upper[i], r[c], -1);
    }
}

static void sweep(long step, long along_a, long along_b)
{
    const long first = at(1, 1, 1);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < n; b++)
        for (int a = 0; a < n; a++)
            solve_line(first + a * along_a + b * along_b, step);
}

static void add(void)
{
#pragma omp parallel for schedule(static)
    for (int k = 1; k <= n; k++)
        for (int j = 1; j <= n; j++)
            for (int i = 1; i <= n; i++)
                for (int a = 0; a < C; a++)
                    u[at(i, j, k)][a] += r[at(i, j, k)][a];
}

/* The step lengths of a phase grow from what suits the roughest error to what
 * suits the smoothest one. */
static double step_length(int step)
{
    const double shortest = 0.3, longest = 0.05 * (n + 1) * (n + 1);
    return shortest * pow(longest / shortest, (double)step / (PHASE - 1));
}

int main(int argc, char **argv)
{
    struct run run = run_begin("bt", argc, argv);
    n = (int)run_pick(&run, 8, 12, 24, 36);
    const long phases = run.times * run_pick(&run, 1, 24, 24, 32);
    const long cells = (long)(n + 2) * (n + 2) * (n + 2);
    vec **field[] = {&u, &r, &source, &target};
    for (int f = 0; f < 4; f++)
        *field[f] = need((size_t)cells, sizeof(vec));
    wind = need((size_t)cells, sizeof *wind);
    for (long c = 0; c < cells; c++)
        wind[c] = SPEED * uniform(3, (uint64_t)c);
    matrices();

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

    bool good = worst < 0.1;
    if (!good)
        fprintf(stderr, "bt: a phase left %.3g of the error, not below 0.1\n", worst);
    hash = hash_doubles(hash, &u[0][0], C * cells);
    return run_end(good, hash, time_s, (double)(phases * PHASE), "steps");
}
