/* Does one thing per line of its input and answers in one line. The tests give orders in between.
 *
 *   region N      a region, num_threads(N) if N > 0          -> its size
 *   sizes N       N regions                                  -> their sizes
 *   if0 N         num_threads(N) if(0)                       -> its size
 *   nested        a region in each thread of a region        -> outer size, sum of the inner ones
 *   nestsizes N   N times that                               -> all sizes, in order
 *   triple        three levels                               -> threads of the innermost in all
 *   pthreads N    regions begun by N threads at a time       -> "right" or "wrong"
 *   set N, dynamic N, maxlevels N                            -> "done"
 *   max, procs, threads, blocktime, dyn                      -> a number
 *   bind N        binds the calling thread to its first N CPUs -> "done"
 *   setblock MS   kmp_set_blocktime                          -> "done"
 *   barriers T N  one region of T threads with N barriers    -> CPU time used, in microseconds
 *   regions T N   N regions of T threads                     -> CPU time used, in microseconds
 *   within T      one region of T threads; each further line N makes N barriers in it, 0 ends it
 *                                                            -> CPU time used, in microseconds
 *   chores        tasks, cancellation, in_parallel, ...      -> "right" or what was wrong
 *   hold T        one region of T threads until a line comes -> "begun", then its size
 *   fork          region in the parent, then in the child    -> what the child says, its size
 *   exec FILE     runs FILE instead of this program
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Of libomp; libgomp has none. */
extern int kmp_get_blocktime(void) __attribute__((weak));
extern void kmp_set_blocktime(int) __attribute__((weak));

static int team(int n)
{
    int size = 0, seen = 0;
    if (n > 0) {
#pragma omp parallel num_threads(n)
        {
#pragma omp atomic
            seen++;
#pragma omp single
            size = omp_get_num_threads();
        }
    } else {
#pragma omp parallel
        {
#pragma omp atomic
            seen++;
#pragma omp single
            size = omp_get_num_threads();
        }
    }
    return seen == size ? size : -1;
}

static int if0(int n)
{
    int size = 0;
#pragma omp parallel num_threads(n) if (n < 0)
    size = omp_get_num_threads();
    return size;
}

static void nested(int print)
{
    int outer = 0, sum = 0, inner[256] = {0};
#pragma omp parallel
    {
        int me = omp_get_thread_num();
#pragma omp single
        outer = omp_get_num_threads();
#pragma omp parallel
        {
#pragma omp master
            inner[me] = omp_get_num_threads();
#pragma omp atomic
            sum++;
        }
    }
    if (!print) {
        printf("%d %d\n", outer, sum);
        return;
    }
    printf("%d:", outer);
    for (int i = 0; i < outer; i++)
        printf("%d,", inner[i]);
    printf(" ");
}

static int triple(void)
{
    int sum = 0;
#pragma omp parallel
#pragma omp parallel
#pragma omp parallel
    {
#pragma omp atomic
        sum++;
    }
    return sum;
}

static void *some_regions(void *result)
{
    for (int round = 0; round < 200; round++) {
        long sum = 0;
#pragma omp parallel for reduction(+ : sum)
        for (long i = 0; i < 1000; i++)
            sum += i;
        if (sum != 499500)
            *(int *)result = 1;
    }
    return NULL;
}

static const char *pthreads(int n)
{
    pthread_t thread[64];
    int wrong[64] = {0}, all = 0;
    for (int i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, some_regions, &wrong[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        all |= wrong[i];
    }
    return all ? "wrong" : "right";
}

static int threads(void)
{
    int count = -2; /* . and .. */
    DIR *tasks = opendir("/proc/self/task");
    while (readdir(tasks))
        count++;
    closedir(tasks);
    return count;
}

static long cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static long barriers(int t, int n)
{
    long before = cpu_us();
#pragma omp parallel num_threads(t)
    for (int i = 0; i < n; i++) {
#pragma omp barrier
    }
    return cpu_us() - before;
}

static const char *bind(int n)
{
    cpu_set_t all, some;
    CPU_ZERO(&some);
    if (sched_getaffinity(0, sizeof all, &all))
        return "failed";
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&some) < n; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &some);
    return pthread_setaffinity_np(pthread_self(), sizeof some, &some) ? "failed" : "done";
}

static long regions(int t, int n)
{
    long before = cpu_us();
    for (int i = 0; i < n; i++) {
#pragma omp parallel num_threads(t)
        {
#pragma omp barrier
        }
    }
    return cpu_us() - before;
}

static void within(int t)
{
    static int count;
    static long before;
#pragma omp parallel num_threads(t)
    do {
#pragma omp barrier
#pragma omp master
        {
            char line[64];
            count = fgets(line, sizeof line, stdin) ? atoi(line) : 0;
            before = cpu_us();
        }
#pragma omp barrier
        for (int i = 0; i < count; i++) {
#pragma omp barrier
        }
#pragma omp master
        printf("%ld\n", cpu_us() - before);
    } while (count > 0);
}

static int kept;
#pragma omp threadprivate(kept)

static long fib(int n)
{
    long a, b;
    if (n < 2)
        return n;
#pragma omp task shared(a)
    a = fib(n - 1);
#pragma omp task shared(b)
    b = fib(n - 2);
#pragma omp taskwait
    return a + b;
}

static const char *chores(void)
{
    static char wrong[256];
    *wrong = 0;
    long f = 0;
    int inside = 0, found = 0, sum = 0, size = 0, after = 0;
#pragma omp parallel
#pragma omp single
    f = fib(12);
    if (f != 144)
        strcat(wrong, "tasks ");
#pragma omp parallel reduction(+ : inside, size)
    {
        size++;
        inside += omp_in_parallel() == (omp_get_num_threads() > 1);
    }
    if (inside != size || omp_in_parallel())
        strcat(wrong, "in_parallel ");
#pragma omp parallel for shared(found)
    for (int i = 0; i < 10000; i++) {
        if (i == 77) {
#pragma omp atomic write
            found = 1;
#pragma omp cancel for
        }
#pragma omp cancellation point for
    }
    if (!found)
        strcat(wrong, "cancellation ");
    int kept_size = 0, again = 0;
#pragma omp parallel
    {
        kept = omp_get_thread_num() + 1;
#pragma omp single
        kept_size = omp_get_num_threads();
    }
#pragma omp parallel reduction(+ : sum)
    {
        sum += kept == omp_get_thread_num() + 1;
#pragma omp single
        again = omp_get_num_threads();
    }
    if (kept_size == again && sum != again)
        strcat(wrong, "threadprivate ");
#pragma omp parallel for ordered schedule(dynamic)
    for (int i = 0; i < 50; i++) {
#pragma omp ordered
        if (after == i)
            after++;
    }
    if (after != 50)
        strcat(wrong, "ordered ");
    return *wrong ? wrong : "right";
}

static void in_child(void)
{
    int pipes[2];
    char answer[32] = {0};
    if (pipe(pipes) != 0)
        exit(3);
    pid_t child = fork();
    if (child == 0) {
        char text[32];
        int length = snprintf(text, sizeof text, "%d", team(0));
        exit(write(pipes[1], text, (size_t)length) == length ? 0 : 4);
    }
    int status;
    waitpid(child, &status, 0);
    close(pipes[1]);
    if (read(pipes[0], answer, sizeof answer - 1) < 0)
        exit(3);
    close(pipes[0]);
    printf("%s %d\n", answer, status);
}

int main(void)
{
    char line[256], word[64], text[128];
    int a, b;
    setvbuf(stdin, NULL, _IONBF, 0); /* "exec" must leave the rest to the next program */
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        a = b = 0;
        *text = 0;
        sscanf(line, "%63s %d %d", word, &a, &b);
        sscanf(line, "%*s %127s", text);
        if (!strcmp(word, "region"))
            printf("%d\n", team(a));
        else if (!strcmp(word, "sizes")) {
            for (int i = 0; i < a; i++)
                printf("%d ", team(0));
            printf("\n");
        } else if (!strcmp(word, "if0"))
            printf("%d\n", if0(a));
        else if (!strcmp(word, "nested"))
            nested(0);
        else if (!strcmp(word, "nestsizes")) {
            for (int i = 0; i < a; i++)
                nested(1);
            printf("\n");
        } else if (!strcmp(word, "triple"))
            printf("%d\n", triple());
        else if (!strcmp(word, "pthreads"))
            printf("%s\n", pthreads(a));
        else if (!strcmp(word, "set"))
            omp_set_num_threads(a), puts("done");
        else if (!strcmp(word, "dynamic"))
            omp_set_dynamic(a), puts("done");
        else if (!strcmp(word, "maxlevels"))
            omp_set_max_active_levels(a), puts("done");
        else if (!strcmp(word, "max"))
            printf("%d\n", omp_get_max_threads());
        else if (!strcmp(word, "procs"))
            printf("%d\n", omp_get_num_procs());
        else if (!strcmp(word, "bind"))
            puts(bind(a));
        else if (!strcmp(word, "dyn"))
            printf("%d\n", omp_get_dynamic());
        else if (!strcmp(word, "threads"))
            printf("%d\n", threads());
        else if (!strcmp(word, "blocktime"))
            printf("%d\n", kmp_get_blocktime ? kmp_get_blocktime() : -1);
        else if (!strcmp(word, "setblock"))
            kmp_set_blocktime(a), puts("done");
        else if (!strcmp(word, "barriers"))
            printf("%ld\n", barriers(a, b));
        else if (!strcmp(word, "regions"))
            printf("%ld\n", regions(a, b));
        else if (!strcmp(word, "within"))
            within(a);
        else if (!strcmp(word, "chores"))
            printf("%s\n", chores());
        else if (!strcmp(word, "hold")) {
            int size = 0;
#pragma omp parallel num_threads(a)
            {
#pragma omp master
                {
                    size = omp_get_num_threads();
                    puts("begun");
                    if (!fgets(line, sizeof line, stdin))
                        exit(3);
                }
#pragma omp barrier
            }
            printf("%d\n", size);
        } else if (!strcmp(word, "fork"))
            in_child();
        else if (!strcmp(word, "exec")) {
            execl(text, text, (char *)NULL);
            printf("no %s: %s\n", text, strerror(errno));
        } else
            printf("what is %s?\n", word);
        fflush(stdout);
    }
    return 0;
}
