/* A shared object whose regions are in another that it needs. Nothing but its order of
 * dependencies says which runtime those use. */
#include <omp.h>

extern int plugin_size(void);
extern int plugin_loop(void);

int outer_size(void)
{
    return plugin_loop() ? plugin_size() : -2;
}

int outer_max(void)
{
    return omp_get_max_threads();
}
