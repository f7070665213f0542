/* A program that is attached to and detached from while it runs: everything that could go wrong in it shows, by its own checks.
 *
 *   attached THREADS MIB        goes on until it reads a line or the end of its standard input, then says "fine N" and ends with status 7
 *   attached alone registers    the same with one thread, which does nothing but count and look at its registers and its signal mask
 *   attached alone epoll        the same with one thread, which waits for its standard input in epoll_wait
 *
 * Each thread has memory of its own with a pattern that only it knows, and does to it what programs do: reads, writes, drops, moves, maps anew, makes it
 * unreadable and readable. Others sleep in system calls that an interruption must not be seen in: epoll_wait, futex, nanosleep, sigtimedwait, read.
 * A timer's signal comes all the time and counts; a thread keeps its registers for floating point and its signal mask, and looks at them.
 * A forked child looks at everything, and a child of its own too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)

static atomic_int over;
static atomic_ulong rounds, alarms;
static atomic_ulong longest; /* pause, ns */

static void fail(const char *what, unsigned long at, unsigned long is) {
    fprintf(stderr, "WRONG: %s at %lu: %lu\n", what, at, is);
    fflush(stderr);
    _exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

struct area {
    uint64_t *base;
    size_t pages;
    uint32_t *version; /* 0: zeros */
};

static uint64_t word(const struct area *area, size_t page, size_t at) {
    uint64_t version = area->version[page];
    return version ? ((uint64_t)page << 32 | version) * 0x9E3779B97F4A7C15ull + (at % 7 ? at / 8 : 0) : 0;
}

static void fill(struct area *area, size_t page) {
    area->version[page]++;
    for (size_t at = 0; at < WORDS; at++) area->base[page * WORDS + at] = word(area, page, at);
}

static void look(const struct area *area, size_t page, const char *who) {
    for (size_t at = 0; at < WORDS; at++) {
        uint64_t is = area->base[page * WORDS + at];
        if (is != word(area, page, at)) fail(who, page * WORDS + at, is);
    }
}

static void *map(size_t pages) {
    void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap", pages, errno);
    return at;
}

static void zero(struct area *area, size_t first, size_t pages) {
    memset(area->version + first, 0, pages * sizeof *area->version);
}

static unsigned rnd(unsigned *seed) { return (*seed = *seed * 1103515245u + 12345u) >> 8; }

static struct area *areas;
static int threads;

static void step(struct area *area, unsigned *seed) {
    size_t first = rnd(seed) % area->pages, pages = 1 + rnd(seed) % 32;
    if (first + pages > area->pages) pages = area->pages - first;
    char *at = (char *)(area->base + first * WORDS);
    switch (rnd(seed) % 64) {
    case 0: /* dropped */
        if (madvise(at, pages * PAGE, MADV_DONTNEED)) fail("MADV_DONTNEED", first, errno);
        zero(area, first, pages);
        break;
    case 1: /* dropped, and written at once */
        if (madvise(at, pages * PAGE, MADV_DONTNEED)) fail("MADV_DONTNEED", first, errno);
        zero(area, first, pages);
        for (size_t page = first; page < first + pages; page++) fill(area, page);
        break;
    case 2: { /* mapped anew, at the same place */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        if (mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) fail("MAP_FIXED", first, errno);
        zero(area, first, pages);
        fill(area, first);
        break;
    }
    case 3: /* unreadable for a moment */
        if (mprotect(at, pages * PAGE, PROT_NONE)) fail("PROT_NONE", first, errno);
        sched_yield();
        if (mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE)) fail("PROT_READ", first, errno);
        break;
    case 4: { /* moved to another place, of which nobody knows, and back. What is several mappings cannot be. */
        char *away = mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (char *)map(2) + 0);
        if (away == MAP_FAILED) break;
        if (mremap(away, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) fail("mremap", first, errno);
        munmap(away + PAGE, PAGE);
        break;
    }
    case 5: /* locked for a moment */
        if (!mlock(at, PAGE)) munlock(at, PAGE);
        break;
    default:
        if (rnd(seed) % 4 == 0) fill(area, first);
    }
    for (size_t page = first; page < first + pages; page++) look(area, page, "a thread's memory");
}

static void *work(void *argument) {
    struct area *area = argument;
    unsigned seed = (unsigned)(uintptr_t)argument | 1;
    double kept = seed * 0.5;
    sigset_t mask, is;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    while (!atomic_load(&over)) {
        uint64_t began = now();
        double held = kept;
        __asm__ volatile("" : "+x"(held));
        step(area, &seed);
        /* In a register throughout, as far as the compiler can be made to. */
        __asm__ volatile("" : "+x"(held));
        if (held != kept) fail("a floating-point register", 0, 0);
        pthread_sigmask(SIG_SETMASK, NULL, &is);
        /* As much as the kernel knows of. */
        if (memcmp(&mask, &is, 8)) fail("the signal mask", 0, 0);
        atomic_fetch_add(&rounds, 1);
        uint64_t took = now() - began, before = atomic_load(&longest);
        while (took > before && !atomic_compare_exchange_weak(&longest, &before, took)) {}
        /* As much work together, however many they are. */
        usleep(rnd(&seed) % (250 * threads));
    }
    return NULL;
}

/* Registers alone, without a system call: each must be what it was. */
static void look_at_registers(void) {
    uint64_t wrong = 0;
        __asm__ volatile(
            "mov $0x1111, %%rbx\n mov $0x2222, %%r12\n mov $0x3333, %%r13\n mov $0x4444, %%r14\n mov $0x5555, %%r15\n"
            "mov $0x6666, %%r8\n mov $0x7777, %%r9\n mov $0x8888, %%r10\n mov $0x9999, %%rsi\n mov $0xaaaa, %%rdi\n"
            "movq %%rbx, %%xmm7\n mov $0xbbbb, %%r11\n mov $200000, %%rcx\n"
            "1: dec %%rcx\n jnz 1b\n"
            "cmp $0x1111, %%rbx\n jne 2f\n cmp $0x2222, %%r12\n jne 2f\n cmp $0x3333, %%r13\n jne 2f\n"
            "cmp $0x4444, %%r14\n jne 2f\n cmp $0x5555, %%r15\n jne 2f\n cmp $0x6666, %%r8\n jne 2f\n"
            "cmp $0x7777, %%r9\n jne 2f\n cmp $0x8888, %%r10\n jne 2f\n cmp $0x9999, %%rsi\n jne 2f\n"
            "cmp $0xaaaa, %%rdi\n jne 2f\n cmp $0xbbbb, %%r11\n jne 2f\n movq %%xmm7, %%rax\n cmp %%rax, %%rbx\n jne 2f\n"
            "jmp 3f\n"
            "2: mov $1, %0\n"
            "3:\n"
            : "+r"(wrong)
            :
            : "rax", "rbx", "rcx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm7", "cc", "memory");
    if (wrong) fail("a register", 0, wrong);
}

static void *registers(void *argument) {
    (void)argument;
    while (!atomic_load(&over)) {
        look_at_registers();
        usleep(200);
    }
    return NULL;
}

static int alone(int waits) {
    struct area area = {map(2048), 2048, calloc(2048, 4)};
    for (size_t page = 0; page < area.pages; page++) fill(&area, page);
    sigset_t mask, is;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
    printf("ready\n");
    fflush(stdout);
    struct pollfd in = {0, POLLIN, 0};
    for (;;) {
        if (waits) {
            int found = epoll_wait(epoll, &event, 1, -1);
            if (found != 1) fail("epoll_wait", found, errno);
            break;
        }
        look_at_registers();
        sigprocmask(SIG_SETMASK, NULL, &is);
        if (memcmp(&mask, &is, 8)) fail("the signal mask", 0, 0);
        if (poll(&in, 1, 0) == 1) break;
    }
    sigprocmask(SIG_SETMASK, NULL, &is);
    if (memcmp(&mask, &is, 8)) fail("the signal mask", 0, 0);
    for (size_t page = 0; page < area.pages; page++) look(&area, page, "memory at the end");
    printf("fine 1\n");
    return 7;
}

static void *epolls(void *argument) {
    (void)argument;
    int pipes[2], epoll = epoll_create1(0);
    if (pipe(pipes)) fail("pipe", 0, errno);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (!atomic_load(&over)) {
        int found = epoll_wait(epoll, &event, 1, 50);
        if (found != 0) fail("epoll_wait", found, errno);
    }
    return NULL;
}

static void *sleeps(void *argument) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    int nothing = 0;
    while (!atomic_load(&over)) {
        struct timespec time = {0, 30000000}, left = {0, 0};
        uint64_t began = now();
        if ((uintptr_t)argument) {
            if (nanosleep(&time, &left)) fail("nanosleep", left.tv_nsec, errno);
        } else {
            long done = syscall(SYS_futex, &nothing, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
            if (done != -1 || errno != ETIMEDOUT) fail("futex", done, errno);
        }
        if (now() - began < 30000000) fail("a sleep was cut short", now() - began, 0);
    }
    return NULL;
}

static void *signals(void *argument) {
    (void)argument;
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    while (!atomic_load(&over)) {
        struct timespec time = {0, 40000000};
        int got = sigtimedwait(&set, NULL, &time);
        if (got != -1 || errno != EAGAIN) fail("sigtimedwait", got, errno);
    }
    return NULL;
}

static void *readers(void *argument) {
    int *pipes = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    char byte;
    ssize_t got = read(pipes[0], &byte, 1);
    if (got != 1 || byte != 'x') fail("read", got, errno);
    return NULL;
}

static void tick(int signal) {
    (void)signal;
    atomic_fetch_add(&alarms, 1);
}

/* A child of which nothing is shared but memory that nobody changes. */
static struct area still;

static void look_at_still(const char *who) {
    for (size_t page = 0; page < still.pages; page++) look(&still, page, who);
}

static void *forks(void *argument) {
    (void)argument;
    while (!atomic_load(&over)) {
        pid_t child = fork();
        if (child == 0) {
            pid_t other = fork();
            if (other == 0) {
                look_at_still("a grandchild's memory");
                _exit(0);
            }
            look_at_still("a child's memory");
            int status;
            if (waitpid(other, &status, 0) != other || status) _exit(1);
            _exit(0);
        }
        int status;
        pid_t done;
        while ((done = waitpid(child, &status, 0)) == -1 && errno == EINTR) {}
        if (done != child || status) fail("a child", done, status);
        look_at_still("memory that was shared with a child");
        for (int i = 0; i < 20 && !atomic_load(&over); i++) usleep(10000);
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count > 2 && !strcmp(arguments[1], "alone")) return alone(!strcmp(arguments[2], "epoll"));
    threads = count > 1 ? atoi(arguments[1]) : 8;
    size_t pages = (count > 2 ? atoi(arguments[2]) : 64) * 256ul / (threads + 1);
    areas = calloc(threads, sizeof *areas);
    still = (struct area){map(pages), pages, calloc(pages, 4)};
    for (size_t page = 0; page < pages; page++) fill(&still, page);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 3000}, {0, 3000}};
    pthread_t made[512];
    int number = 0, pipes[2];
    if (pipe(pipes)) fail("pipe", 0, errno);
    for (int i = 0; i < threads && i < 400; i++) {
        areas[i] = (struct area){map(pages), pages, calloc(pages, 4)};
        for (size_t page = 0; page < pages; page++) fill(&areas[i], page);
        pthread_create(&made[number++], NULL, work, &areas[i]);
    }
    pthread_create(&made[number++], NULL, registers, NULL);
    pthread_create(&made[number++], NULL, epolls, NULL);
    pthread_create(&made[number++], NULL, sleeps, NULL);
    pthread_create(&made[number++], NULL, sleeps, (void *)1);
    pthread_create(&made[number++], NULL, signals, NULL);
    pthread_create(&made[number++], NULL, readers, pipes);
    pthread_create(&made[number++], NULL, forks, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    ssize_t got;
    while ((got = read(0, line, sizeof line)) == -1) fail("read of a line", 0, errno);
    (void)got;
    atomic_store(&over, 1);
    if (write(pipes[1], "x", 1) != 1) fail("write", 0, errno);
    for (int i = 0; i < number; i++) pthread_join(made[i], NULL);
    for (int i = 0; i < threads; i++)
        for (size_t page = 0; page < pages; page++) look(&areas[i], page, "memory at the end");
    look_at_still("memory at the end");
    if (!atomic_load(&alarms)) fail("no signal came", 0, 0);
    printf("fine %lu, longest %lu us\n", atomic_load(&rounds), atomic_load(&longest) / 1000);
    return 7;
}
