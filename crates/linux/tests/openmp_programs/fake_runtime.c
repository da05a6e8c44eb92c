/* A runtime that does nothing but tell what reaches it; its __kmpc entry points are those of
 * newer libomp, too. Built as a shared library. */
#include <stdarg.h>
#include <stdio.h>

int omp_get_max_threads(void) { return 8; }
int omp_get_num_procs(void) { return 8; }
int omp_get_dynamic(void) { return 0; }
int omp_get_level(void) { return 0; }
int omp_get_active_level(void) { return 0; }
int omp_get_team_size(int level) { return level ? -1 : 1; }
int omp_get_ancestor_thread_num(int level) { return level ? -1 : 0; }
static int blocktime = 200;
int kmp_get_blocktime(void) { return blocktime; }
void kmp_set_blocktime(int ms) { blocktime = ms; printf("blocktime %d; ", ms); }
int __kmpc_global_thread_num(void *location) { (void)location; return 5; }

void __kmpc_push_num_threads(void *location, int thread, int n)
{
    printf("push %s %d %d; ", (char *)location, thread, n);
}
void __kmpc_push_num_threads_strict(void *location, int thread, int n, int severity, const char *message)
{
    printf("strict %s %d %d %d %s; ", (char *)location, thread, n, severity, message);
}
void __kmpc_push_num_threads_list(void *location, int thread, unsigned length, int *list)
{
    printf("list %s %d %u %d; ", (char *)location, thread, length, list[length - 1]);
}
void __kmpc_push_num_threads_list_strict(void *location, int thread, unsigned length, int *list, int severity,
                                         const char *message)
{
    printf("list strict %s %d %u %d %d %s; ", (char *)location, thread, length, list[length - 1], severity, message);
}
void __kmpc_serialized_parallel(void *location, int thread)
{
    printf("serial %s %d; ", (char *)location, thread);
}
void __kmpc_fork_call_if(void *location, int count, void *body, int condition, void *arguments)
{
    printf("fork_if %s %d %s %d %s\n", (char *)location, count, (char *)body, condition, (char *)arguments);
}

/* `count` numbers, then as many doubles: more than the registers hold of both. */
void __kmpc_fork_call(void *location, int count, void *body, ...)
{
    va_list list;
    va_start(list, body);
    printf("fork %s %d %s:", (char *)location, count, (char *)body);
    for (int i = 0; i < count; i++)
        printf(" %ld", va_arg(list, long));
    for (int i = 0; i < count; i++)
        printf(" %.2f", va_arg(list, double));
    printf("\n");
    va_end(list);
}

/* libgomp's side: all eight arguments, and a result. */
int GOMP_parallel(void *body, void *data, unsigned threads, unsigned flags)
{
    printf("gomp %s %s %u %x\n", (char *)body, (char *)data, threads, flags);
    return 0;
}
int GOMP_parallel_reductions(void *body, void *data, unsigned threads, unsigned flags)
{
    printf("reductions %s %s %u %x; ", (char *)body, (char *)data, threads, flags);
    return 4711;
}
void GOMP_parallel_loop_dynamic(void *body, void *data, unsigned threads, long start, long end, long step, long chunk,
                                unsigned flags)
{
    printf("loop %s %s %u %ld %ld %ld %ld %x\n", (char *)body, (char *)data, threads, start, end, step, chunk, flags);
}
