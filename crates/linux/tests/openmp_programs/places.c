/* Calls the fake runtime with places in the source that lie in no object: none, the heap, the stack. */
#include <stdio.h>
#include <string.h>

extern void __kmpc_push_num_threads(void *, int, int);
extern void __kmpc_fork_call(void *, int, void *, ...);

int main(void)
{
    char stack[] = "stack";
    void *places[] = {NULL, strdup("heap"), stack};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < 9; i++) {
        __kmpc_fork_call(places[i % 3], 1, "body", 1L, 1.5);
        __kmpc_push_num_threads(places[i % 3], 5, 3);
    }
    puts("");
    return 0;
}
