// Exceptions thrown and caught within regions, across calls within them, and around them.
#include <cstdio>
#include <omp.h>
#include <stdexcept>

static int deep(int n)
{
    if (n == 0)
        throw std::runtime_error("deep");
    return deep(n - 1) + 1;
}

struct Counter {
    int &of;
    explicit Counter(int &c) : of(c) { of++; }
    ~Counter() { of--; }
};

int main()
{
    int caught = 0, wrong = 0;
    for (int round = 0; round < 200; round++) {
        int size = 0, here = 0;
#pragma omp parallel reduction(+ : here, wrong)
        {
            int alive = 0;
            try {
                Counter one(alive);
                deep(5 + omp_get_thread_num());
            } catch (const std::runtime_error &) {
                here++;
            }
            wrong += alive;
            if (omp_get_thread_num() == 0)
                size = omp_get_num_threads();
        }
        wrong += here != size;
        try {
#pragma omp parallel num_threads(2)
            {
#pragma omp atomic
                caught++;
            }
            deep(3);
        } catch (const std::exception &) {
            caught = 0;
        }
        wrong += caught;
    }
    std::printf("wrong %d\n", wrong);
}
