/* fork_join: P1's Figure 7. Each turn is a sequential unit of work, then eight parallel ones.
 *
 *   fork_join [SIZE]                          as all workloads
 *   fork_join steps                           how many steps take a millisecond here
 *   fork_join UNIT SETTLE COUNT [balanced]    units of UNIT steps; turns a second, counted for COUNT seconds after
 *                                             SETTLE; balanced: the sequential unit is each thread's in turn
 *
 * A step's result is a function of its number, and sums are of integers: right at any team size.
 */
#include "common.h"

enum { PARALLEL = 8, ROUNDS = 256 };

static uint64_t step(uint64_t number)
{
    for (int round = 0; round < ROUNDS; round++)
        number = mix64(number);
    return number;
}

static uint64_t steps(long from, long to)
{
    uint64_t sum = 0;
    for (long i = from; i < to; i++)
        sum += step((uint64_t)i);
    return sum;
}

/* One turn; the sum of all steps. */
static uint64_t turn(long number, long unit, bool balanced)
{
    uint64_t sum = balanced ? 0 : steps(0, unit);
#pragma omp parallel reduction(+ : sum)
    {
        long threads = omp_get_num_threads(), me = omp_get_thread_num(), all = unit * PARALLEL;
        if (balanced) {
            if (me == number % threads)
                sum += steps(0, unit);
#pragma omp barrier
        }
        sum += steps(unit + all * me / threads, unit + all * (me + 1) / threads);
    }
    return sum;
}

/* By the fastest of some, as a vCPU may stand still meanwhile. */
static int calibrate(void)
{
    double least = 1;
    uint64_t sum = 0;
    for (int i = 0; i < 400; i++) {
        double begun = now_s();
        sum += steps(0, 20);
        double took = now_s() - begun;
        if (took > 0 && took < least)
            least = took;
    }
    printf("steps_per_ms: %.0f\n", fmax(1, 20 * 1e-3 / least));
    return sum == 0;
}

static int count_turns(long unit, double settle, double count, bool balanced)
{
    double begun = now_s(), from = 0, now;
    long number = 0, before = 0;
    uint64_t first = turn(0, unit, balanced), wrong = 0;
    do {
        wrong += turn(++number, unit, balanced) != first;
        now = now_s();
        if (from == 0 && now - begun >= settle) {
            from = now;
            before = number;
        }
    } while (from == 0 || now - from < count);
    printf("turns_per_s: %f\n", (double)(number - before) / (now - from));
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "steps") == 0)
        return calibrate();
    char *end = argv[0];
    long unit = argc >= 4 ? strtol(argv[1], &end, 10) : 0;
    if (unit > 0 && *end == '\0')
        return count_turns(unit, atof(argv[2]), atof(argv[3]), argc > 4);

    struct run run = run_begin("fork_join", argc, argv);
    unit = run_pick(&run, 10, 100, 400, 1600);
    const long turns = run.times * run_pick(&run, 40, 200, 400, 400);
    const uint64_t expected = steps(0, unit * (1 + PARALLEL));
    long right = 0;
    run_start(&run);
    for (long number = 0; number < turns; number++)
        right += turn(number, unit, number % 2 == 1) == expected;
    double time_s = run_stop(&run);
    return run_end(right == turns, expected, time_s, (double)turns, "turns");
}
