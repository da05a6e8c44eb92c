/* cg: conjugate gradients on a sparse random symmetric matrix. Four short
 * parallel regions per inner iteration (product, dot, update, direction): the
 * time between two barriers is tens to hundreds of microseconds.
 *
 * The matrix is a sum of shifted diagonals under a random renumbering, with
 * values that are a symmetric function of the two indices, and a diagonal that
 * dominates. Each outer iteration takes a new right-hand side and checks the
 * true residual. Dots are summed per fixed block: exact for any team size.
 */
#include "common.h"

enum { SHIFTS = 6, ROW = 2 * SHIFTS + 1, INNER = 25 };

static long n;             /* rows, a power of two */
static int32_t *column;    /* n x ROW */
static double *value;      /* n x ROW */
static double *x, *r, *p, *q, *b;

/* Where row i of the sum of shifted diagonals goes: odd multipliers and
 * xor-shifts are bijections of the low bits. */
static uint64_t renumber(uint64_t i)
{
    const uint64_t mask = (uint64_t)n - 1;
    i = i * 0x2545f491u & mask;
    i ^= i >> 6;
    return i * 0x9e3779b1u & mask;
}

static void build_matrix(void)
{
    long shift[SHIFTS];
    for (int s = 0; s < SHIFTS; s++)
        shift[s] = 1 + (long)(mix64((uint64_t)s + 77) % ((uint64_t)n / 2 - 1));

#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) {
        uint64_t row = renumber((uint64_t)i);
        int32_t *col = column + row * ROW;
        double *val = value + row * ROW;
        double sum = 0;
        for (int s = 0; s < 2 * SHIFTS; s++) {
            long j = (i + (s & 1 ? -shift[s / 2] : shift[s / 2])) & (n - 1);
            uint64_t other = renumber((uint64_t)j);
            uint64_t low = row < other ? row : other, high = row < other ? other : row;
            col[s] = (int32_t)other;
            val[s] = 2 * uniform(low, high) - 1;
            sum += fabs(val[s]);
        }
        col[ROW - 1] = (int32_t)row;
        val[ROW - 1] = 0.01 + sum;
    }
}

static void multiply(const double *in, double *out)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) {
        const int32_t *col = column + i * ROW;
        const double *val = value + i * ROW;
        double sum = 0;
        for (int s = 0; s < ROW; s++)
            sum += val[s] * in[col[s]];
        out[i] = sum;
    }
}

static double dot(const double *restrict u, const double *restrict v)
{
    double part[BLOCKS];
#pragma omp parallel for schedule(static)
    for (int k = 0; k < BLOCKS; k++) {
        double sum = 0;
        for (long i = block_start(n, k); i < block_start(n, k + 1); i++)
            sum += u[i] * v[i];
        part[k] = sum;
    }
    return sum_in_order(part, BLOCKS);
}

/* x += alpha p, r -= alpha q; returns r.r */
static double advance(double alpha)
{
    double part[BLOCKS];
#pragma omp parallel for schedule(static)
    for (int k = 0; k < BLOCKS; k++) {
        double sum = 0;
        for (long i = block_start(n, k); i < block_start(n, k + 1); i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            sum += r[i] * r[i];
        }
        part[k] = sum;
    }
    return sum_in_order(part, BLOCKS);
}

static void turn(double beta)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        p[i] = r[i] + beta * p[i];
}

/* A new right-hand side from the last solution and fresh noise; x = 0. */
static void next_problem(long outer, double norm)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) {
        b[i] = x[i] / norm + uniform((uint64_t)outer, (uint64_t)i) - 0.5;
        r[i] = p[i] = b[i];
        x[i] = 0;
    }
}

static double true_residual(void)
{
    multiply(x, q);
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        r[i] = b[i] - q[i];
    return sqrt(dot(r, r) / dot(b, b));
}

int main(int argc, char **argv)
{
    struct run run = run_begin("cg", argc, argv);
    n = run_pick(&run, 1L << 12, 1L << 14, 1L << 16, 1L << 17);
    const long outer_count = run.times * run_pick(&run, 2, 55, 90, 120);
    column = need((size_t)n * ROW, sizeof *column);
    value = need((size_t)n * ROW, sizeof *value);
    double **vector[] = {&x, &r, &p, &q, &b};
    for (int v = 0; v < 5; v++)
        *vector[v] = need((size_t)n, sizeof(double));
    build_matrix();

    double worst = 0, norm = 1;
    uint64_t hash = 0;
    run_start(&run);
    for (long outer = 0; outer < outer_count; outer++) {
        next_problem(outer, norm);
        double rho = dot(r, r);
        for (int inner = 0; inner < INNER; inner++) {
            multiply(p, q);
            double next = advance(rho / dot(p, q));
            turn(next / rho);
            rho = next;
        }
        worst = fmax(worst, true_residual());
        norm = sqrt(dot(x, x));
        hash = hash_double(hash, norm);
    }
    double time_s = run_stop(&run);

    /* Measured for all sizes: below 1e-7 after 25 iterations. */
    bool good = worst < 1e-5;
    if (!good)
        fprintf(stderr, "cg: relative residual %.3g, not below 1e-5\n", worst);
    hash = hash_doubles(hash, x, n);
    return run_end(good, hash, time_s, (double)(outer_count * INNER), "inner iterations");
}
