/* ep: embarrassingly parallel. Pairs of Gaussian numbers by the polar method,
 * counted by ring. One parallel region with a reduction, no other
 * synchronisation: the program that does not care how its threads are scheduled.
 *
 * Each pair is a function of its index and all sums are integers (fixed point
 * with 20 bits), so the result is the same in whatever order they are added.
 */
#include "common.h"

enum { RINGS = 10 };
static const double FIXED = 1 << 20;

/* |value - expected| within six standard errors: one false alarm in 5e8 runs. */
static bool near(const char *what, double value, double expected, double error)
{
    bool good = fabs(value - expected) <= 6 * error;
    if (!good)
        fprintf(stderr, "ep: %s is %.9g, not %.9g +- %.2g\n", what, value, expected, error);
    return good;
}

int main(int argc, char **argv)
{
    struct run run = run_begin("ep", argc, argv);
    const long pairs = run.times * run_pick(&run, 100000, 16L << 20, 145L << 20, 600L << 20);
    int64_t accepted = 0, sum_x = 0, sum_y = 0, sum_r2 = 0;
    int64_t ring[RINGS] = {0};

    run_start(&run);
#pragma omp parallel for schedule(static) reduction(+ : accepted, sum_x, sum_y, sum_r2, ring[:RINGS])
    for (long i = 0; i < pairs; i++) {
        uint64_t bits = mix64((uint64_t)i);
        double u = (double)(int32_t)(bits >> 32) * 0x1p-31;
        double v = (double)(int32_t)bits * 0x1p-31;
        double s = u * u + v * v;
        if (s >= 1 || s == 0)
            continue;
        double scale = sqrt(-2 * log(s) / s);
        double x = u * scale, y = v * scale;
        int r = (int)fmax(fabs(x), fabs(y));
        ring[r < RINGS ? r : RINGS - 1]++;
        accepted++;
        sum_x += (int64_t)(x * FIXED);
        sum_y += (int64_t)(y * FIXED);
        sum_r2 += (int64_t)((x * x + y * y) * FIXED);
    }
    double time_s = run_stop(&run);

    double n = (double)pairs, m = (double)accepted, p = acos(-1.0) / 4;
    bool good = near("share of accepted pairs", m / n, p, sqrt(p * (1 - p) / n));
    good &= near("mean of x", (double)sum_x / FIXED / m, 0, 1 / sqrt(m));
    good &= near("mean of y", (double)sum_y / FIXED / m, 0, 1 / sqrt(m));
    good &= near("mean of x^2 + y^2", (double)sum_r2 / FIXED / m, 2, 2 / sqrt(m));
    uint64_t hash = hash_word(hash_word(hash_word(0, (uint64_t)sum_x), (uint64_t)sum_y), (uint64_t)sum_r2);
    int64_t counted = 0;
    for (int r = 0; r < RINGS; r++) {
        counted += ring[r];
        hash = hash_word(hash, (uint64_t)ring[r]);
    }
    good &= counted == accepted;
    return run_end(good, hash, time_s, n, "pairs");
}
