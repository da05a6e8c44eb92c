/* Regions of clang with 0 to 12 captured variables, by reference and (doubles, too) by value,
 * with and without num_threads. Prints: variables, clause, size of the team, "right" or "wrong". */
#include <omp.h>
#include <stdio.h>

#define TEXT(x) #x
#define PRAGMA(x) _Pragma(TEXT(x))

/* `expression` adds up to `sum` where all captured values arrive. */
#define REGION(n, clauses, expression, expected)                                          \
    {                                                                                     \
        static int seen, right, size;                                                     \
        seen = right = size = 0;                                                          \
        PRAGMA(omp parallel clauses)                                                      \
        {                                                                                 \
            int fits = (expression) == (expected);                                        \
            PRAGMA(omp atomic)                                                            \
            right += fits;                                                                \
            PRAGMA(omp atomic)                                                            \
            seen++;                                                                       \
            if (omp_get_thread_num() == 0)                                                \
                size = omp_get_num_threads();                                             \
        }                                                                                 \
        printf("%d %d %d %s\n", n, clause, size, seen == size && right == size ? "right" : "wrong"); \
    }

#define ALL(clauses)                                                                                    \
    REGION(0, clauses, 1, 1)                                                                            \
    REGION(1, clauses firstprivate(a), a, 1)                                                            \
    REGION(2, clauses firstprivate(a) shared(x), a + x, 1.5)                                            \
    REGION(3, clauses firstprivate(a, y) shared(x), a + x + y, 1.75)                                    \
    REGION(4, clauses firstprivate(x, y, z, w), x + y + z + w, 0.9375)                                  \
    REGION(5, clauses firstprivate(a, b, c) shared(d, e), a + b + c + d + e, 15)                        \
    REGION(6, clauses firstprivate(a, b, c, x) shared(d, e), a + b + c + d + e + x, 15.5)               \
    REGION(7, clauses firstprivate(x, y, z, w) shared(a, b, c), x + y + z + w + a + b + c, 6.9375)      \
    REGION(8, clauses firstprivate(a, b, c, d) shared(x, y, z, w), x + y + z + w + a + b + c + d, 10.9375) \
    REGION(9, clauses firstprivate(a, b, c, d, e) shared(x, y, z, w), x + y + z + w + a + b + c + d + e, 15.9375) \
    REGION(10, clauses firstprivate(x, y, z, w, v) shared(a, b, c, d, e), x + y + z + w + v + a + b + c + d + e, 15.96875) \
    REGION(11, clauses firstprivate(x, y, z, w, v, f) shared(a, b, c, d, e), x + y + z + w + v + a + b + c + d + e + f, 21.96875) \
    REGION(12, clauses firstprivate(x, y, z, w, v, f) shared(a, b, c, d, e, u), x + y + z + w + v + u + a + b + c + d + e + f, 21.984375)

int main(int argc, char **argv)
{
    (void)argv;
    long a = argc, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5;
    double x = a * .5, y = x / 2, z = y / 2, w = z / 2, v = w / 2, u = v / 2;
    int clause = 0;
    ALL()
    clause = 3;
    ALL(num_threads(3))
    clause = 1;
    ALL(num_threads(3) if (argc > 1))
    return 0;
}
