/* 1024 regions at as many places in the code, in two passes. Prints what the second one cost of
 * the heap, in bytes, and how many regions had one size in both. */
#include <malloc.h>
#include <omp.h>
#include <stdio.h>

static int sizes[1024], same, next;

static void seen(int size)
{
    same += sizes[next] == size;
    sizes[next] = size;
    next = (next + 1) % 1024;
}

#define R1                                                                                        \
    {                                                                                             \
        int size = 0;                                                                             \
        _Pragma("omp parallel")                                                                   \
        {                                                                                         \
            if (omp_get_thread_num() == 0)                                                        \
                size = omp_get_num_threads();                                                     \
        }                                                                                         \
        seen(size);                                                                               \
    }
#define R4 R1 R1 R1 R1
#define R16 R4 R4 R4 R4
#define R64 R16 R16 R16 R16
#define R256 R64 R64 R64 R64

int main(void)
{
    long before = 0;
    for (int pass = 0; pass < 2; pass++) {
        before = (long)mallinfo2().uordblks;
        R256 R256 R256 R256
    }
    long grown = (long)mallinfo2().uordblks - before;
    printf("%ld %d\n", grown, same);
    return 0;
}
