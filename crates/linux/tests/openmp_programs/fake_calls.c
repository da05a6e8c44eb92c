/* Calls the fake runtime as compilers call a real one. */
#include <stdio.h>

extern void __kmpc_push_num_threads(void *, int, int);
extern void __kmpc_push_num_threads_strict(void *, int, int, int, const char *);
extern void __kmpc_push_num_threads_list(void *, int, unsigned, int *);
extern void __kmpc_push_num_threads_list_strict(void *, int, unsigned, int *, int, const char *);
extern void __kmpc_serialized_parallel(void *, int);
extern void __kmpc_fork_call_if(void *, int, void *, int, void *);
extern void __kmpc_fork_call(void *, int, void *, ...);
extern void GOMP_parallel(void *, void *, unsigned, unsigned);
extern int GOMP_parallel_reductions(void *, void *, unsigned, unsigned);
extern void GOMP_parallel_loop_dynamic(void *, void *, unsigned, long, long, long, long, unsigned);

int main(void)
{
    int list[] = {6, 7};
    setvbuf(stdout, NULL, _IOLBF, 0);
    __kmpc_fork_call("at", 0, "body");
    __kmpc_fork_call("at", 10, "body", 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L, 10L, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5,
                     9.5, 10.25);
    __kmpc_push_num_threads("at", 5, 3);
    __kmpc_fork_call("at", 1, "body", 1L, 1.5);
    __kmpc_push_num_threads_strict("at", 5, 3, 1, "message");
    __kmpc_fork_call("at", 0, "strict");
    __kmpc_push_num_threads_list("at", 5, 2, list);
    __kmpc_fork_call("at", 0, "list");
    __kmpc_push_num_threads_list_strict("at", 5, 2, list, 1, "message");
    __kmpc_fork_call("at", 0, "list strict");
    __kmpc_push_num_threads("at", 5, 1);
    __kmpc_serialized_parallel("at", 5);
    __kmpc_fork_call("at", 0, "after");
    __kmpc_fork_call_if("at", 1, "body", 1, "arguments");
    __kmpc_push_num_threads("at", 5, 1);
    __kmpc_fork_call_if("at", 1, "body", 0, "arguments");
    __kmpc_fork_call("at", 0, "after");
    GOMP_parallel("body", "data", 0, 0xffffffff);
    int n = GOMP_parallel_reductions("body", "data", 7, 0x80000000);
    printf("%d\n", n);
    GOMP_parallel_loop_dynamic("body", "data", 1, -5, 1L << 62, -3, 77, 0xabcdef01);
    return 0;
}
