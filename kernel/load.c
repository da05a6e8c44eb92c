/* Keeps the kernel of a test VM busy in what takes spin locks: files of one directory, pipes, page faults, processes.
 * usage: load WORKERS SECONDS     prints how often all workers went around, and the fastest and the slowest of them */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct worker {
    unsigned long rounds;
    char rest_of_line[56];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void once_around(int worker, unsigned long round)
{
    char name[64], other[64], byte = 1;
    int ends[2];
    snprintf(name, sizeof name, "/tmp/load-%d", worker);
    snprintf(other, sizeof other, "/tmp/load-%d-renamed", worker);
    int file = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (file < 0 || write(file, name, sizeof name) != sizeof name) fail(name);
    close(file);
    if (rename(name, other) || unlink(other)) fail(other);

    if (pipe(ends) || write(ends[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 1) fail("pipe");
    close(ends[0]);
    close(ends[1]);

    enum { PAGES = 8, PAGE = 4096 };
    char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    for (int page = 0; page < PAGES; page++) memory[page * PAGE] = 1;
    munmap(memory, PAGES * PAGE);

    if (round % 8 == 0) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) _exit(0);
        if (waitpid(child, NULL, 0) != child) fail("waitpid");
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    int workers = argc == 3 ? atoi(argv[1]) : 0, seconds = argc == 3 ? atoi(argv[2]) : 0;
    if (workers < 1 || seconds < 1) {
        fprintf(stderr, "usage: load WORKERS SECONDS\n");
        return 2;
    }
    struct worker *all = mmap(NULL, workers * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) fail("mmap");
    double start = now();
    for (int i = 0; i < workers; i++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child) continue;
        while (now() - start < seconds) once_around(i, all[i].rounds++);
        _exit(0);
    }
    for (int i = 0, status; i < workers; i++)
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "load: a worker failed\n");
            return 1;
        }
    double took = now() - start;
    unsigned long sum = 0, most = 0, least = ~0UL;
    for (int i = 0; i < workers; i++) {
        unsigned long n = all[i].rounds;
        sum += n;
        most = n > most ? n : most;
        least = n < least ? n : least;
    }
    printf("load: rounds %lu seconds %.2f max/min %lu/%lu\n", sum, took, most, least);
    return 0;
}
