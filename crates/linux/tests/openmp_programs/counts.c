/* Asks for the number of CPUs in every way that the C library has.
 *
 *   all                online, get_nprocs, mask, mask of the thread: as answered
 *   thread             the same, asked in a second thread; then its mask, asked by the first
 *   fork / exec        the same, in a child
 *   mask PID           CPUs in the mask of a process
 *   numbers            keeps to each CPU in turn; sched_getcpu and getcpu in the mask as answered?
 *   sizes              masks of many lengths: result and errno as the kernel's?
 *   errno              is errno as it was after each question?
 *   restore BYTES      sets the answer again in so many bytes: CPUs in the true mask before, after
 *   which              the CPUs in the mask, as answered
 *   child              sets the answer for a child: CPUs in the child's true mask
 *   attribute          a thread made with the answer as its mask: CPUs in the true mask of both
 *   unasked            sets a mask of the first CPU without a question: CPUs in the true mask
 *   place              sets another mask: CPUs answered before and after
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM 1024
static unsigned char mask[ROOM];

static int bits(const unsigned char *m)
{
    int n = 0;
    for (int i = 0; i < ROOM; i++)
        n += __builtin_popcount(m[i]);
    return n;
}

static int answered(pid_t id)
{
    memset(mask, 0, ROOM);
    return sched_getaffinity(id, ROOM, (cpu_set_t *)mask) ? -errno : bits(mask);
}

/* Asks the kernel. */
static int truth(void)
{
    memset(mask, 0, ROOM);
    return syscall(SYS_sched_getaffinity, 0, ROOM, mask) < 0 ? -errno : bits(mask);
}

static void all(void)
{
    unsigned char own[ROOM] = {0};
    int failed = pthread_getaffinity_np(pthread_self(), ROOM, (cpu_set_t *)own);
    printf("%ld %d %d %d\n", sysconf(_SC_NPROCESSORS_ONLN), get_nprocs(), answered(0), failed ? -failed : bits(own));
    fflush(stdout);
}

static int pipe_end[2];
static void *second(void *unused)
{
    pid_t tid = (pid_t)syscall(SYS_gettid);
    all();
    write(pipe_end[1], &tid, sizeof tid);
    sleep(60);
    return unused;
}

static void *kernel_says(void *count)
{
    *(int *)count = truth();
    return NULL;
}

static int numbers(void)
{
    unsigned char allowed[ROOM] = {0};
    syscall(SYS_sched_getaffinity, 0, ROOM, allowed);
    for (int cpu = 0; cpu < ROOM * 8; cpu++) {
        unsigned char one[ROOM] = {0};
        unsigned number = 0, node;
        if (!(allowed[cpu / 8] >> cpu % 8 & 1))
            continue;
        one[cpu / 8] = (unsigned char)(1 << cpu % 8);
        syscall(SYS_sched_setaffinity, 0, ROOM, one);
        if (getcpu(&number, &node) || getcpu(NULL, NULL))
            return 0;
        int also = sched_getcpu();
        answered(0);
        if (also < 0 || !(mask[also / 8] >> also % 8 & 1) || !(mask[number / 8] >> number % 8 & 1))
            return 0;
    }
    return 1;
}

static int sizes(void)
{
    for (size_t size = 0; size <= 300; size++) {
        unsigned char ours[ROOM], kernels[ROOM];
        memset(ours, 0xee, ROOM);
        memset(kernels, 0, ROOM);
        errno = 0;
        int result = sched_getaffinity(0, size, (cpu_set_t *)ours), error = errno;
        errno = 0;
        long theirs = syscall(SYS_sched_getaffinity, 0, size, kernels);
        if ((result < 0) != (theirs < 0) || error != errno)
            return 0;
        int cpus = 0;
        for (size_t i = 0; result == 0 && i < ROOM; i++) {
            if (i < size ? ours[i] & ~kernels[i] : ours[i] != 0xee)
                return 0;
            cpus += i < size && ours[i];
        }
        if (result == 0 && !cpus)
            return 0;
    }
    errno = 0;
    return sched_getaffinity(0, ROOM, NULL) == -1 && errno == EFAULT && answered(-5) == -ESRCH;
}

static int errno_is_kept(void)
{
    unsigned number;
#define KEEPS(question) (errno = 77, (void)(question), errno == 77)
    return KEEPS(sysconf(_SC_NPROCESSORS_ONLN)) && KEEPS(get_nprocs()) && KEEPS(sched_getcpu()) &&
           KEEPS(getcpu(&number, NULL)) && KEEPS(answered(0)) && KEEPS(answered(getpid())) &&
           KEEPS(pthread_getaffinity_np(pthread_self(), ROOM, (cpu_set_t *)mask));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t thread;
    if (!strcmp(what, "all"))
        all();
    else if (!strcmp(what, "thread")) {
        pid_t tid;
        pipe(pipe_end);
        pthread_create(&thread, NULL, second, NULL);
        read(pipe_end[0], &tid, sizeof tid);
        printf("%d\n", answered(tid));
    } else if (!strcmp(what, "fork") || !strcmp(what, "exec")) {
        if (fork() == 0) {
            if (*what == 'e')
                execl(argv[0], argv[0], "all", NULL);
            all();
            _exit(0);
        }
        wait(NULL);
    } else if (!strcmp(what, "mask"))
        printf("%d\n", answered(number));
    else if (!strcmp(what, "numbers"))
        printf("%d\n", numbers());
    else if (!strcmp(what, "sizes"))
        printf("%d\n", sizes());
    else if (!strcmp(what, "errno"))
        printf("%d\n", errno_is_kept());
    else if (!strcmp(what, "restore")) {
        unsigned char saved[ROOM * 4] = {0};
        int before = truth();
        sched_getaffinity(0, ROOM, (cpu_set_t *)saved);
        int failed = sched_setaffinity(0, (size_t)number, (cpu_set_t *)saved);
        printf("%d %d %d\n", failed, before, truth());
    } else if (!strcmp(what, "which")) {
        answered(0);
        for (int cpu = 0; cpu < ROOM * 8; cpu++)
            if (mask[cpu / 8] >> cpu % 8 & 1)
                printf("%d ", cpu);
    } else if (!strcmp(what, "child")) {
        char byte = 0;
        pipe(pipe_end);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            read(pipe_end[0], &byte, 1);
            printf("%d\n", truth());
            return 0;
        }
        answered(0);
        sched_setaffinity(child, ROOM, (cpu_set_t *)mask);
        write(pipe_end[1], &byte, 1);
        wait(NULL);
    } else if (!strcmp(what, "attribute")) {
        pthread_attr_t attr;
        int of_thread = 0, before = truth();
        pthread_attr_init(&attr);
        answered(0);
        pthread_attr_setaffinity_np(&attr, ROOM, (cpu_set_t *)mask);
        pthread_create(&thread, &attr, kernel_says, &of_thread);
        pthread_join(thread, NULL);
        pthread_attr_setaffinity_np(&attr, 0, NULL);
        printf("%d %d\n", before, of_thread);
    } else if (!strcmp(what, "unasked")) {
        unsigned char first[ROOM] = {0};
        truth();
        for (int i = 0; i < ROOM && !bits(first); i++)
            first[i] = (unsigned char)(mask[i] & -mask[i]);
        sched_setaffinity(0, ROOM, (cpu_set_t *)first);
        printf("%d\n", truth());
    } else if (!strcmp(what, "place")) {
        int before = answered(0);
        truth();
        mask[0] ^= 1; /* all but CPU 0 */
        sched_setaffinity(0, ROOM, (cpu_set_t *)mask);
        printf("%d %d\n", before, answered(0));
    }
    return 0;
}
