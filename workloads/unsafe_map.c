/* unsafe_map: MUST NOT be resized. The work is divided once, at the start, into
 * one task per thread of a team of omp_get_max_threads(); in each pass thread i
 * does task i and no other. A smaller team leaves tasks undone, and nothing
 * notices: the program checks only the sums that were made, prints verified: yes
 * and exits 0 with a wrong checksum. Only comparing the output shows it.
 *
 * Right at any fixed team size: the sum over all items is an integer.
 */
#include "common.h"

enum { ROUNDS = 24 };

int main(int argc, char **argv)
{
    struct run run = run_begin("unsafe_map", argc, argv);
    const long items = run_pick(&run, 1L << 10, 1L << 12, 1L << 13, 1L << 14);
    const long passes = run.times * run_pick(&run, 20, 1000, 4600, 9500);
    const int tasks = omp_get_max_threads();
    uint64_t total = 0, made = 0;

    run_start(&run);
    for (long pass = 0; pass < passes; pass++) {
        uint64_t pass_total = 0, pass_made = 0;
#pragma omp parallel
        {
            int task = omp_get_thread_num();
            uint64_t sum = 0, done = 0;
            if (task < tasks) {
                for (long i = items * task / tasks; i < items * (task + 1) / tasks; i++) {
                    uint64_t x = (uint64_t)(pass * items + i);
                    for (int round = 0; round < ROUNDS; round++)
                        x = mix64(x);
                    sum += x;
                    done++;
                }
            }
#pragma omp atomic
            pass_total += sum;
#pragma omp atomic
            pass_made += done;
        }
        total = hash_word(total, pass_total);
        made += pass_made;
    }
    double time_s = run_stop(&run);

    /* The check of somebody who never thought of a smaller team. */
    bool good = total != 0 && made > 0;
    return run_end(good, total, time_s, (double)passes, "passes");
}
