/* Programs that do something unusual, by name; each prints the sizes of its regions.
 *
 *   closed        closes all descriptors, also the standard ones, first; tells by its exit status
 *   spawn N       N times posix_spawn of "size", one after the other
 *   vfork         vfork and exec of "size", and a region of its own afterwards
 *   size          one region
 *   forks N       N children at a time that wait for a line, each with a region; before any region
 *   leave         the main thread leaves by pthread_exit, another one works on and ends
 *   signals       a timer signal 2000 times a second while regions run
 *   constructor   regions in a constructor (always), in main, and in an atexit handler
 *   cleared       clears the environment before the first region
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int in_constructor;

static int size(void)
{
    int n = 0;
#pragma omp parallel
#pragma omp single
    n = omp_get_num_threads();
    return n;
}

__attribute__((constructor)) static void early(void)
{
    if (getenv("EARLY"))
        in_constructor = size();
}

static void late(void)
{
    printf("atexit %d\n", size());
    fflush(stdout);
}

static void *rest(void *arg)
{
    (void)arg;
    usleep(100000);
    int n = 0;
#pragma omp parallel
#pragma omp single
    n = omp_get_num_threads();
    printf("rest %d\n", n);
    fflush(stdout);
    return NULL;
}

static volatile sig_atomic_t ticks;
static void tick(int signal)
{
    (void)signal;
    ticks++;
}

int main(int argc, char **argv)
{
    const char *what = argv[1];
    int n = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(what, "size"))
        printf("%d\n", size());
    else if (!strcmp(what, "closed")) {
        for (int fd = 0; fd < 1024; fd++)
            close(fd);
        return size() == size() ? 40 + size() : 1;
    } else if (!strcmp(what, "spawn")) {
        for (int i = 0; i < n; i++) {
            pid_t child;
            int status;
            char *arguments[] = {argv[0], "size", NULL};
            fflush(stdout);
            if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0)
                return 3;
            waitpid(child, &status, 0);
            if (status != 0)
                return 4;
        }
    } else if (!strcmp(what, "vfork")) {
        int status;
        pid_t child = vfork();
        if (child == 0) {
            execl("/proc/self/exe", argv[0], "size", (char *)NULL);
            _exit(5);
        }
        waitpid(child, &status, 0);
        printf("%d %d\n", status, size());
    } else if (!strcmp(what, "forks")) {
        char line[8];
        for (int i = 0; i < n; i++)
            if (fork() == 0) {
                int mine = size();
                char text[16];
                int length = snprintf(text, sizeof text, "%d\n", mine);
                if (write(1, text, (size_t)length) != length)
                    exit(3);
                /* Waits for the end of input, which all share. */
                while (read(0, line, 1) > 0)
                    ;
                exit(0);
            }
        int bad = 0, status;
        while (wait(&status) > 0)
            bad += status != 0;
        return bad != 0;
    } else if (!strcmp(what, "leave")) {
        pthread_t thread;
        printf("main %d\n", size());
        fflush(stdout);
        pthread_create(&thread, NULL, rest, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(what, "signals")) {
        struct itimerval often = {{0, 500}, {0, 500}};
        signal(SIGALRM, tick);
        setitimer(ITIMER_REAL, &often, NULL);
        long rounds = 0, wrong = 0;
        while (ticks < 500 || rounds < 2000) {
            long sum = 0;
#pragma omp parallel for reduction(+ : sum)
            for (int i = 0; i < 500; i++)
                sum += i;
            wrong += sum != 124750;
            rounds++;
        }
        printf("wrong %ld\n", wrong);
    } else if (!strcmp(what, "constructor")) {
        atexit(late);
        printf("constructor %d main %d\n", in_constructor, size());
    } else if (!strcmp(what, "cleared")) {
        while (environ && *environ) { /* not clearenv: libomp does not survive it */
            char name[256];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(*environ, "="), *environ);
            unsetenv(name);
        }
        printf("%d %d\n", size(), size());
    } else
        return 9;
    return 0;
}
