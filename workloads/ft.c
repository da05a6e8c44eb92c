/* ft: one 3-D Fourier transform per time step. The spectrum of a wave function
 * turns freely (Schroedinger's equation without a potential), each step brings
 * it back to space. Four large regions per step, each several milliseconds,
 * with strided access in two of them.
 *
 * Verified: the norm is conserved in every step, and the forward transform of
 * the last field gives the spectrum back. Lines do not depend on one another,
 * so all bits are the same for any team size.
 */
#include "common.h"

typedef struct { double re, im; } cplx;

enum { LINE_MAX = 128, BATCH = 8 };

static int n;                    /* n x n x n points, a power of two */
static cplx *spectrum, *field;
static cplx root[LINE_MAX / 2];  /* exp(+2 pi i k / n) */
static cplx turn[LINE_MAX];      /* factor of one step, per dimension */

static inline cplx mul(cplx a, cplx b)
{
    return (cplx){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* Stockham transform of BATCH lines at once: x[i][line], y is scratch. Returns
 * the one that holds the result. sign +1 is the inverse, without scaling. */
static cplx (*transform(cplx (*x)[BATCH], cplx (*y)[BATCH], int sign))[BATCH]
{
    for (int half = n / 2, stride = 1; half >= 1; half /= 2, stride *= 2) {
        for (int p = 0; p < half; p++) {
            cplx w = {root[p * stride].re, sign * root[p * stride].im};
            for (int q = 0; q < stride; q++) {
                const cplx *a = x[q + stride * p], *b = x[q + stride * (p + half)];
                cplx *c = y[q + stride * 2 * p], *d = y[q + stride * (2 * p + 1)];
                for (int l = 0; l < BATCH; l++) {
                    cplx u = a[l], v = b[l];
                    c[l] = (cplx){u.re + v.re, u.im + v.im};
                    d[l] = mul((cplx){u.re - v.re, u.im - v.im}, w);
                }
            }
        }
        cplx (*swap)[BATCH] = x;
        x = y;
        y = swap;
    }
    return x;
}

/* Transforms all lines of one dimension in place. `line_step` is the distance
 * of neighbours in a line; a batch takes BATCH lines `batch_step` apart, and
 * batches start at the multiples given by the two outer counters. */
static void transform_dimension(cplx *data, int sign, long line_step, long batch_step,
                                long outer_step, long inner_step)
{
#pragma omp parallel for collapse(2) schedule(static)
    for (int outer = 0; outer < n; outer++)
        for (int inner = 0; inner < n / BATCH; inner++) {
            cplx one[LINE_MAX][BATCH], two[LINE_MAX][BATCH];
            cplx *base = data + outer * outer_step + inner * inner_step;
            for (int i = 0; i < n; i++)
                for (int l = 0; l < BATCH; l++)
                    one[i][l] = base[i * line_step + l * batch_step];
            cplx (*out)[BATCH] = transform(one, two, sign);
            for (int i = 0; i < n; i++)
                for (int l = 0; l < BATCH; l++)
                    base[i * line_step + l * batch_step] = out[i][l];
        }
}

static void transform_cube(cplx *data, int sign)
{
    const long row = n, plane = (long)n * n;
    transform_dimension(data, sign, plane, 1, row, BATCH);       /* z */
    transform_dimension(data, sign, row, 1, plane, BATCH);       /* y */
    transform_dimension(data, sign, 1, row, plane, BATCH * row); /* x */
}

/* spectrum *= one step's phase; field = spectrum, scaled for the inverse. */
static void evolve(void)
{
    const double scale = 1.0 / ((double)n * n * n);
#pragma omp parallel for schedule(static)
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++) {
            cplx t = mul(turn[j], turn[k]);
            long at = ((long)k * n + j) * n;
            for (int i = 0; i < n; i++) {
                cplx s = mul(spectrum[at + i], mul(t, turn[i]));
                spectrum[at + i] = s;
                field[at + i] = (cplx){s.re * scale, s.im * scale};
            }
        }
}

static double norm(const cplx *data)
{
    double part[LINE_MAX];
    const long plane = (long)n * n;
#pragma omp parallel for schedule(static)
    for (int k = 0; k < n; k++) {
        double sum = 0;
        for (const cplx *c = data + k * plane; c < data + (k + 1) * plane; c++)
            sum += c->re * c->re + c->im * c->im;
        part[k] = sum;
    }
    return sqrt(sum_in_order(part, n));
}

static void initialise(void)
{
    const double pi = acos(-1.0);
    for (int i = 0; i < n / 2; i++)
        root[i] = (cplx){cos(2 * pi * i / n), sin(2 * pi * i / n)};
    for (int i = 0; i < n; i++) {
        double k = i < n / 2 ? i : i - n;
        turn[i] = (cplx){cos(-1e-3 * k * k), sin(-1e-3 * k * k)};
    }
    const long points = (long)n * n * n;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < points; i++)
        spectrum[i] = (cplx){uniform(1, (uint64_t)i) - 0.5, uniform(2, (uint64_t)i) - 0.5};
}

int main(int argc, char **argv)
{
    struct run run = run_begin("ft", argc, argv);
    n = (int)run_pick(&run, 16, 32, 64, 128);
    const long steps = run.times * run_pick(&run, 2, 500, 450, 165);
    const long points = (long)n * n * n;
    spectrum = need((size_t)points, sizeof *spectrum);
    field = need((size_t)points, sizeof *field);
    initialise();
    const double expected = norm(spectrum) / sqrt((double)points);

    double drift = 0;
    uint64_t hash = 0;
    run_start(&run);
    for (long step = 0; step < steps; step++) {
        evolve();
        transform_cube(field, +1);
        double got = norm(field);
        drift = fmax(drift, fabs(got / expected - 1));
        hash = hash_double(hash, got);
    }
    double time_s = run_stop(&run);

    hash = hash_doubles(hash, &field[0].re, 2 * points);
    transform_cube(field, -1);
    double error = 0;
    for (long i = 0; i < points; i++)
        error = fmax(error, fmax(fabs(field[i].re - spectrum[i].re), fabs(field[i].im - spectrum[i].im)));
    bool good = drift < 1e-9 && error < 1e-9;
    if (!good)
        fprintf(stderr, "ft: norm drifts by %.3g, way back differs by %.3g, not below 1e-9\n", drift, error);
    return run_end(good, hash, time_s, (double)steps, "steps");
}
