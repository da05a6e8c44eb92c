/* A fork-join program that is spoken to. At first it notes the CPUs that it may use.
 *
 *   turns N MS T   N times: MS ms of sequential work, then a region of T threads (0: as many as there are)
 *                  -> how often threads of these regions, or those that one of them starts, might not use all those CPUs
 *   strays         -> how many threads of the process may not now
 *   bind           the worker with the number 1 keeps to the CPU that it is on -> "done"
 *   narrow         the first thread keeps to the CPU that it is on -> "done"
 *   begins         a thread of its own says `turns 20 3 0` -> the same
 *   forks          a child says `turns 20 3 0` -> the same
 *   nested         sequential work, then a region of two in each thread of a region, 20 times -> threads in all
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static cpu_set_t all;

static int stray(int tid)
{
    cpu_set_t now;
    CPU_ZERO(&now);
    return sched_getaffinity(tid, sizeof now, &now) == 0 && !CPU_EQUAL(&now, &all);
}

static void *starts(void *strays)
{
    if (stray(0))
        __atomic_add_fetch((int *)strays, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void work(int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    double end = t.tv_sec + 1e-9 * t.tv_nsec + 1e-3 * ms;
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    while (t.tv_sec + 1e-9 * t.tv_nsec < end);
}

static int turns(int count, int ms, int threads)
{
    int strays = 0;
    for (int i = 0; i < count; i++) {
        work(ms);
#pragma omp parallel num_threads(threads > 0 ? threads : omp_get_max_threads())
        {
            starts(&strays);
            if (omp_get_thread_num() == 1) {
                pthread_t other;
                if (pthread_create(&other, NULL, starts, &strays) == 0)
                    pthread_join(other, NULL);
            }
        }
    }
    return strays;
}

static int strays(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.' && stray(atoi(task->d_name));
    closedir(tasks);
    return count;
}

static void keep(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void *begins(void *result)
{
    *(int *)result = turns(20, 3, 0);
    return NULL;
}

static int nested(void)
{
    int seen = 0;
    for (int i = 0; i < 20; i++) {
        work(3);
#pragma omp parallel
#pragma omp parallel num_threads(2)
        {
#pragma omp atomic
            seen++;
        }
    }
    return seen;
}

int main(void)
{
    char line[256];
    int a, b, c;
    CPU_ZERO(&all);
    sched_getaffinity(0, sizeof all, &all);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "turns %d %d %d", &a, &b, &c) == 3) {
            printf("%d\n", turns(a, b, c));
        } else if (strncmp(line, "strays", 6) == 0) {
            printf("%d\n", strays());
        } else if (strncmp(line, "bind", 4) == 0) {
#pragma omp parallel
            if (omp_get_thread_num() == 1)
                keep();
            printf("done\n");
        } else if (strncmp(line, "narrow", 6) == 0) {
            keep();
            printf("done\n");
        } else if (strncmp(line, "begins", 6) == 0) {
            pthread_t other;
            pthread_create(&other, NULL, begins, &a);
            pthread_join(other, NULL);
            printf("%d\n", a);
        } else if (strncmp(line, "forks", 5) == 0) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0)
                exit(turns(20, 3, 0));
            waitpid(child, &a, 0);
            printf("%d\n", WIFEXITED(a) ? WEXITSTATUS(a) : -1);
        } else if (strncmp(line, "nested", 6) == 0) {
            printf("%d\n", nested());
        }
        fflush(stdout);
    }
    return 0;
}
