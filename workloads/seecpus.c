/* libseecpus.so: makes a program believe that it has COREFIT_SEE_CPUS CPUs.
 *
 *     LD_PRELOAD=libseecpus.so COREFIT_SEE_CPUS=16 ./cg S
 *
 * A guest whose vCPUs outnumber the physical ones it gets looks exactly like
 * this to a runtime: 16 CPUs, no hint that they are not there. Answered: sysconf
 * (_SC_NPROCESSORS_ONLN, _CONF), get_nprocs, get_nprocs_conf, sched_getaffinity,
 * pthread_getaffinity_np. Binding to a mask with a CPU that does not exist
 * succeeds without effect; the affinity calls through syscall() do not exist.
 * Not reached: programs that make system calls themselves (Go, Java in part,
 * static binaries) or read /proc and /sys.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

/* The function that this library hides. */
#define REAL(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))

/* The CPUs to show; 0 means the real ones. Read once. */
static int seen_cpus(void)
{
    static _Atomic int seen = -1;
    if (seen >= 0)
        return seen;
    const char *text = getenv("COREFIT_SEE_CPUS");
    int count = 0;
    if (text != NULL) {
        char *end;
        long value = strtol(text, &end, 10);
        if (*text != '\0' && *end == '\0' && value >= 1 && value <= CPU_SETSIZE)
            count = (int)value;
        else
            fprintf(stderr, "libseecpus: COREFIT_SEE_CPUS='%s' is ignored: give 1 to %d\n", text, CPU_SETSIZE);
    }
    seen = count;
    return count;
}

/* Fills a mask of `size` bytes with the seen CPUs; false if it is too short. */
static bool fill(void *mask, size_t size)
{
    int count = seen_cpus();
    if (size * 8 < (size_t)count)
        return false;
    memset(mask, 0, size);
    for (int cpu = 0; cpu < count; cpu++)
        CPU_SET_S((size_t)cpu, size, (cpu_set_t *)mask);
    return true;
}

/* Does the mask contain a CPU that is shown but does not exist? */
static bool beyond(const void *mask, size_t size)
{
    long real = REAL(sysconf)(_SC_NPROCESSORS_CONF);
    for (size_t cpu = real > 0 ? (size_t)real : 0; cpu < (size_t)seen_cpus() && cpu < size * 8; cpu++)
        if (CPU_ISSET_S(cpu, size, (const cpu_set_t *)mask))
            return true;
    return false;
}

long sysconf(int name)
{
    bool asks = name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF;
    return asks && seen_cpus() > 0 ? seen_cpus() : REAL(sysconf)(name);
}

int get_nprocs(void)
{
    return seen_cpus() > 0 ? seen_cpus() : REAL(get_nprocs)();
}

int get_nprocs_conf(void)
{
    return seen_cpus() > 0 ? seen_cpus() : REAL(get_nprocs_conf)();
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask)
{
    int result = REAL(sched_getaffinity)(pid, size, mask);
    if (seen_cpus() == 0 || (result != 0 && errno != EINVAL))
        return result;
    if (fill(mask, size))
        return 0;
    errno = EINVAL;
    return -1;
}

int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *mask)
{
    if (seen_cpus() == 0)
        return REAL(pthread_getaffinity_np)(thread, size, mask);
    return fill(mask, size) ? 0 : EINVAL;
}

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *mask)
{
    return beyond(mask, size) ? 0 : REAL(sched_setaffinity)(pid, size, mask);
}

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *mask)
{
    return beyond(mask, size) ? 0 : REAL(pthread_setaffinity_np)(thread, size, mask);
}

int pthread_attr_setaffinity_np(pthread_attr_t *attr, size_t size, const cpu_set_t *mask)
{
    return beyond(mask, size) ? 0 : REAL(pthread_attr_setaffinity_np)(attr, size, mask);
}

/* Only libomp comes this way. Given a mask of N CPUs it would visit each of them,
 * find the real ones by cpuid, and stop on a failed assertion; told that there is
 * no affinity it takes sysconf's count and binds nothing, which is its default. */
long syscall(long number, ...)
{
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (seen_cpus() > 0 && (number == SYS_sched_getaffinity || number == SYS_sched_setaffinity)) {
        errno = ENOSYS;
        return -1;
    }
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
