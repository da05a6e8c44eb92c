/* Opens and closes shared objects and calls them, as told line by line.
 *
 *   open I FILE / now I FILE / global I FILE / deep I FILE      -> "done"
 *   call I NAME        int NAME(void)                           -> its result
 *   set I N            plugin_set(N)                            -> "done"
 *   close I            -> how many mappings of its file are left
 *   cycle N A B        N times: open A, call, close, open B, call, close -> result, KiB grown
 *   own                a region of the program itself           -> its size
 *   made               a region begun by code made at run time  -> its size
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static void *handle[16];
static char file[16][512];

static int own(void)
{
    int size = 0, seen = 0;
#ifdef _OPENMP
#pragma omp parallel
    {
#pragma omp atomic
        seen += 1 << omp_get_thread_num();
#pragma omp single
        size = omp_get_num_threads();
    }
#endif
    return seen == (1 << size) - 1 ? size : -1;
}

static int made_size;
static void body(void *data)
{
    (void)data;
#ifdef _OPENMP
    if (omp_get_thread_num() == 0)
        made_size = omp_get_num_threads();
#endif
}

/* sub rsp, 8; mov rax, GOMP_parallel; call rax; add rsp, 8; ret */
static int made(void)
{
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *begin = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    memcpy(code, "\x48\x83\xec\x08\x48\xb8________\xff\xd0\x48\x83\xc4\x08\xc3", 21);
    memcpy(code + 6, &begin, 8);
    for (int i = 0; i < 3; i++)
        ((void (*)(void (*)(void *), void *, unsigned, unsigned))(void *)code)(body, NULL, 0, 0);
    return made_size;
}

static int mappings(const char *name)
{
    char line[1024];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        count += strstr(line, name) != NULL;
    fclose(maps);
    return count;
}

static int call(void *from, const char *name)
{
    int (*function)(void) = (int (*)(void))dlsym(from, name);
    return function ? function() : -3;
}

static int once(const char *name)
{
    void *object = dlopen(name, RTLD_LAZY);
    if (!object || call(object, "plugin_calls") != 1)
        return -4;
    int size = call(object, "plugin_size");
    dlclose(object);
    return mappings(name) ? -5 : size;
}

int main(void)
{
    char line[2048], word[64], text[512], other[512];
    int i;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        i = 0;
        *text = *other = 0;
        sscanf(line, "%63s %d %511s %511s", word, &i, text, other);
        int mode = !strcmp(word, "open")     ? RTLD_LAZY
                   : !strcmp(word, "now")    ? RTLD_NOW
                   : !strcmp(word, "global") ? RTLD_LAZY | RTLD_GLOBAL
                   : !strcmp(word, "deep")   ? RTLD_LAZY | RTLD_DEEPBIND
                                             : -1;
        if (mode >= 0) {
            handle[i] = dlopen(text, mode);
            strcpy(file[i], text);
            puts(handle[i] ? "done" : dlerror());
        } else if (!strcmp(word, "call"))
            printf("%d\n", call(handle[i], text));
        else if (!strcmp(word, "set")) {
            ((void (*)(int))dlsym(handle[i], "plugin_set"))(atoi(text));
            puts("done");
        } else if (!strcmp(word, "close")) {
            dlclose(handle[i]);
            printf("%d\n", mappings(file[i]));
        } else if (!strcmp(word, "cycle")) {
            int size = once(text);
            for (int warm = 0; warm < 10; warm++)
                once(warm & 1 ? text : other);
            size_t before = mallinfo2().uordblks;
            for (int n = 0; n < i; n++) {
                if (once(text) != size || once(other) != size) {
                    size = -6;
                    break;
                }
            }
            printf("%d %ld\n", size, ((long)mallinfo2().uordblks - (long)before) / 1024);
        } else if (!strcmp(word, "own"))
            printf("%d\n", own());
        else if (!strcmp(word, "made"))
            printf("%d\n", made());
        else
            puts("what?");
    }
    return 0;
}
