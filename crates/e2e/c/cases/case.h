/* What the programs of hard cases share. A program is run as `PROGRAM CASE plain` or `PROGRAM CASE folded`; it ends with 0
 * if the case holds, and folded only if the memory in question had been evicted when it mattered. */
#ifndef CASE_H
#define CASE_H
#ifndef _GNU_SOURCE /* g++ has it defined. */
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 8 << 20, WORDS = LEN / 8 };

/* How often it is looked, a millisecond apart, for what must come: a busy machine takes its time. */
enum { TRIES = 120000 };

static int folded;

#define CHECK(good)                                                                                \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            fprintf(stderr, "%s:%d: %s (errno: %s)\n", __FILE__, __LINE__, #good, strerror(errno)); \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static inline uint64_t word(size_t i)
{
    return (i / 3) * 2654435761u + 1;
}

static inline void fill(uint64_t *p)
{
    for (size_t i = 0; i < WORDS; i++)
        p[i] = word(i);
}

static inline uint64_t *filled(void)
{
    uint64_t *p = (uint64_t *)mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    fill(p);
    return p;
}

static inline int intact(const uint64_t *p)
{
    for (size_t i = 0; i < WORDS; i++)
        if (p[i] != word(i))
            return 0;
    return 1;
}

/* How many of the pages at `p` are away; asking touches none of them. */
static inline size_t away(const void *p, size_t len)
{
    static unsigned char here[LEN / PAGE];
    size_t count = 0;
    CHECK(len <= LEN && mincore((void *)p, len, here) == 0);
    for (size_t i = 0; i < len / PAGE; i++)
        count += !(here[i] & 1);
    return count;
}

/* Waits until nine tenths of the pages at `p` are evicted. Plainly, they never are. */
static inline void wait_until_evicted(const void *p)
{
    if (!folded)
        return;
    for (int tries = 0; tries < TRIES; tries++) {
        if (away(p, LEN) >= LEN / PAGE / 10 * 9)
            return;
        usleep(1000);
    }
    fprintf(stderr, "the memory is not evicted\n");
    _exit(2);
}

static inline uint64_t *evicted(void)
{
    uint64_t *p = filled();
    wait_until_evicted(p);
    return p;
}

/* How many threads the kernel counts in this process. */
static inline int threads(void)
{
    struct stat st;
    CHECK(stat("/proc/self/task", &st) == 0);
    return (int)st.st_nlink - 2;
}

/* A system call past libc. */
static inline long bare(long number, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                  x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

/* Whether the child ends with 0. */
static inline int child_is_well(pid_t child)
{
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct hard_case {
    const char *name;
    void (*run)(void);
};

static inline int run_case(int argc, char **argv, const struct hard_case *cases, size_t count)
{
    folded = argc > 2 && strcmp(argv[2], "folded") == 0;
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 64;
}

#define CASES(...)                                                            \
    int main(int argc, char **argv)                                           \
    {                                                                         \
        static const struct hard_case cases[] = {__VA_ARGS__};                \
        return run_case(argc, argv, cases, sizeof cases / sizeof cases[0]);   \
    }
#endif
