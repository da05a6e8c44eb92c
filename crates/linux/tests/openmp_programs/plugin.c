/* A shared object that uses OpenMP. A region in one runtime and a thread number from another would
 * show: the numbers are not 0 to n - 1 then. */
#include <omp.h>

int plugin_size(void)
{
    int size = 0, seen = 0;
#pragma omp parallel
    {
#pragma omp atomic
        seen += 1 << omp_get_thread_num();
#pragma omp single
        size = omp_get_num_threads();
    }
    return seen == (1 << size) - 1 ? size : -1;
}

int plugin_loop(void)
{
    int seen = 0, all = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : all)
    for (int i = 0; i < 1000; i++) {
        all++;
        if (omp_get_thread_num() == 0) {
#pragma omp atomic
            seen++;
        }
    }
    return all == 1000 && seen <= 1000;
}

/* A function that ends in a region which captures nothing: compilers jump to the entry point, so
 * that the region "returns" to whoever called this. */
static int filled, fillers;
void plugin_fill(void)
{
#pragma omp parallel
    {
        __atomic_fetch_add(&filled, 1 << omp_get_thread_num(), __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&fillers, 1, __ATOMIC_SEQ_CST);
    }
}

/* The size of the last such region. */
int plugin_filled(void)
{
    int size = fillers, right = filled == (1 << size) - 1;
    filled = fillers = 0;
    return right ? size : -1;
}

/* Counts from when it was loaded. */
int plugin_calls(void)
{
    static int calls;
    return ++calls;
}

void plugin_set(int threads)
{
    omp_set_num_threads(threads);
}

int plugin_max(void)
{
    return omp_get_max_threads();
}
