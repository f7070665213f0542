/* A program that is always in the same odd moment when it is attached to: its own checks see what that does to it.
 *
 *   moments trap        it handles SIGTRAP, which it blocks
 *   moments ignored     it ignores SIGTRAP
 *   moments sequence    it is in a restartable sequence (rseq(2)) nearly all the time
 *   moments timeout     it waits for a socket for which a time is set
 *   moments handler     it is in a signal handler, on a small stack of its own
 *   moments mask        it waits in ppoll with a signal mask of its own
 *   moments sandbox     its idlest thread is under a filter that ends the process at the first call that maps anything
 *   moments vfork       it makes children by vfork all the time
 *   moments direction   it has the direction of moves downwards (DF) nearly all the time
 *   moments alignment   it has accesses that are not aligned trap (AC) nearly all the time
 *   moments narrow      it executes code of 32 bits nearly all the time
 *   moments dispatch    it waits in epoll_wait, with a handler of its own for system calls (PR_SET_SYSCALL_USER_DISPATCH), which lets all through until the end
 *   moments nice        its idlest thread gives way to all others (nice 19), and is confined to one CPU
 *   moments beside      it maps a page below each mapping of its process when it is told anything, and keeps it from children as the agent does its own
 *   moments confides    it has secrets that no core dump has: four words in each page, of which each follows from the one before
 *   moments tells       the same, which core dumps have
 *   moments headless    its first thread ends when it is told "end"
 *
 * Each goes on until the end of its standard input, answers each line with the same line, says "fine" at the end, and ends with status 7.
 */
#define _GNU_SOURCE
#include "secret.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/rseq.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 2048ul

static uint64_t *held;

static void fail(const char *what, long is) {
    fprintf(stderr, "WRONG: %s: %ld\n", what, is);
    fflush(stderr);
    _exit(1);
}

static void hold(void) {
    held = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (held == MAP_FAILED) fail("mmap", errno);
    for (size_t at = 0; at < PAGES * 512; at++) held[at] = at / 8 * 0x9E3779B97F4A7C15ull;
}

static void look(void) {
    for (size_t at = 0; at < PAGES * 512; at++)
        if (held[at] != at / 8 * 0x9E3779B97F4A7C15ull) fail("memory", at);
}

/* Takes what has come. Whether there is more to come. */
static int take(void) {
    char line[64];
    ssize_t got = read(0, line, sizeof line);
    if (got < 0) fail("read", errno);
    if (got && write(1, line, got) != got) fail("write", errno);
    return got > 0;
}

static int comes(int patience) {
    struct pollfd in = {0, POLLIN, 0};
    int found = poll(&in, 1, patience);
    if (found < 0) fail("poll", errno);
    return found;
}

static volatile sig_atomic_t handled;
static void handle(int signal) { handled = signal; }

static void trap(int ignores) {
    struct sigaction is, action = {.sa_handler = ignores ? SIG_IGN : handle};
    sigaction(SIGTRAP, &action, NULL);
    sigset_t mask, before;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTRAP);
    sigprocmask(SIG_BLOCK, &mask, &before);
    while (take()) {}
    sigaction(SIGTRAP, NULL, &is);
    if (is.sa_handler != action.sa_handler) fail("what is done at SIGTRAP", (long)is.sa_handler);
    sigprocmask(SIG_SETMASK, &before, NULL);
    raise(SIGTRAP);
    if (!ignores && handled != SIGTRAP) fail("SIGTRAP was not handled", handled);
}

/* Counts in a sequence. The kernel forgets the sequence when it has begun it anew, and then it must not come to its end. */
static void sequence(void) {
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    if (!__rseq_size) fail("no rseq", 0);
    static struct rseq_cs described;
    uint64_t aborted = 0, done = 0;
    for (;;) {
        for (int round = 0; round < 20; round++) {
            uint64_t left = 0;
            __asm__ volatile goto(
                "lea 1f(%%rip), %%rax\n mov %%rax, 8(%0)\n"
                "lea 2f(%%rip), %%rcx\n sub %%rax, %%rcx\n mov %%rcx, 16(%0)\n"
                "lea 3f(%%rip), %%rax\n mov %%rax, 24(%0)\n"
                "mov $300000, %%ecx\n"
                "mov %0, 8(%1)\n"
                "1: dec %%ecx\n jnz 1b\n"
                "mov 8(%1), %%rax\n mov %%rax, (%2)\n"
                "2: jmp 4f\n"
                ".byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
                "3: jmp %l[again]\n"
                "4:\n"
                :
                : "r"(&described), "r"(area), "r"(&left)
                : "rax", "rcx", "cc", "memory"
                : again);
            if (!left) fail("a sequence that was interrupted came to its end", done);
            done++;
            continue;
        again:
            aborted++;
        }
        if (comes(0) && !take()) break;
    }
    if (!done) fail("no sequence came to its end", aborted);
}

static int pair[2];

/* A child that writes to the socket at the end. It is made before there is anything: what a child shares is not folded. */
static void feed(void) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("socketpair", errno);
    if (!fork()) {
        while (take()) {}
        _exit(write(pair[1], "x", 1) == 1 ? 0 : 1);
    }
}

static void timeouts(void) {
    struct timeval time = {1000, 0};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    char byte = 0;
    ssize_t got = recv(pair[0], &byte, 1, 0);
    if (got != 1 || byte != 'x') fail("recv", got < 0 ? -errno : got);
}

static volatile sig_atomic_t in_handler;
static void stay(int signal) {
    (void)signal;
    in_handler = 1;
    while (take()) {}
}

static void handler(void) {
    size_t len = 16384;
    stack_t stack = {.ss_sp = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = len};
    if (sigaltstack(&stack, NULL)) fail("sigaltstack", errno);
    struct sigaction action = {.sa_handler = stay, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    if (!in_handler) fail("the handler", 0);
    stack_t is;
    sigaltstack(NULL, &is);
    if (is.ss_sp != stack.ss_sp || is.ss_size != len || is.ss_flags) fail("the signal stack", is.ss_flags);
}

static void mask(void) {
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t blocked, is, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    for (;;) {
        struct pollfd in = {0, POLLIN, 0};
        int found = ppoll(&in, 1, NULL, &none);
        if (found != 1) fail("ppoll", errno);
        sigprocmask(SIG_SETMASK, NULL, &is);
        if (memcmp(&is, &blocked, 8)) fail("the signal mask", 0);
        if (!take()) break;
    }
    /* The mask of the call is in force during it. */
    raise(SIGUSR1);
    if (handled) fail("a blocked signal", handled);
    ppoll(NULL, 0, NULL, &none);
    if (handled != SIGUSR1) fail("a signal", handled);
}

static void *confined(void *argument) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) fail("seccomp", errno);
    *(volatile int *)argument = 1;
    for (;;) {
        struct timespec time = {1000, 0};
        if (nanosleep(&time, NULL)) fail("nanosleep", errno);
    }
    return NULL;
}

/* Waits for lines by the call that an interruption ends without a signal, and that is interrupted last of all. */
static void wait_by_epoll(void) {
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
    do {
        if (epoll_wait(epoll, &event, 1, -1) != 1) fail("epoll_wait", errno);
    } while (take());
}

static void sandbox(void) {
    volatile int begun = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, confined, (void *)&begun);
    while (!begun) usleep(1000);
    wait_by_epoll();
}

static void *looks(void *argument) {
    (void)argument;
    for (;;) {
        look();
        usleep(1000);
    }
    return NULL;
}

static void vforks(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, looks, NULL);
    for (;;) {
        int status;
        pid_t child = vfork();
        if (!child) _exit(held[4096] == 512 * 0x9E3779B97F4A7C15ull ? 3 : 4);
        if (waitpid(child, &status, 0) != child || status != 3 << 8) fail("a child", status);
        if (comes(1) && !take()) break;
    }
}

enum { SPINS = 20000000 };

static void direction(void) {
    do {
        unsigned long left = SPINS;
        __asm__ volatile("std\n1: dec %0\n jnz 1b\n cld" : "+r"(left) : : "cc");
    } while (!comes(0) || take());
}

static void alignment(void) {
    do {
        unsigned long left = SPINS;
        /* Below the red zone. */
        __asm__ volatile("sub $128, %%rsp\n pushf\n orq $0x40000, (%%rsp)\n popf\n"
                         "1: dec %0\n jnz 1b\n"
                         "pushf\n andq $~0x40000, (%%rsp)\n popf\n add $128, %%rsp" : "+r"(left) : : "cc", "memory");
    } while (!comes(0) || take());
}

static void narrow(void) {
    static unsigned long stack;
    static struct { unsigned at; unsigned short segment; } __attribute__((packed)) there;
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (code == MAP_FAILED) fail("mmap", errno);
    unsigned at = (unsigned)(uintptr_t)code, back = at + 64, spins = SPINS;
    unsigned long *kept = &stack;
    /* mov ecx, SPINS; 1: dec ecx; jnz 1b; jmp far 0x33:back */
    unsigned char counts[] = {0xb9, 0, 0, 0, 0, 0x49, 0x75, 0xfd, 0xea, 0, 0, 0, 0, 0x33, 0};
    memcpy(counts + 1, &spins, 4);
    memcpy(counts + 9, &back, 4);
    /* mov rax, kept; mov rsp, [rax]; ret */
    unsigned char returns[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x8b, 0x20, 0xc3};
    memcpy(returns + 2, &kept, 8);
    memcpy(code, counts, sizeof counts);
    memcpy(code + 64, returns, sizeof returns);
    there.at = at;
    there.segment = 0x23;
    do {
        __asm__ volatile("sub $128, %%rsp\n call 1f\n jmp 2f\n"
                         "1: mov %%rsp, %0\n ljmp *%1\n"
                         "2: add $128, %%rsp" : "=m"(stack) : "m"(there)
                         : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory");
        /* As long in code of 64 bits. */
        unsigned long left = SPINS;
        __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(left) : : "cc");
    } while (!comes(0) || take());
}

static void *gives_way(void *argument) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one)) fail("sched_setaffinity", errno);
    if (setpriority(PRIO_PROCESS, gettid(), 19)) fail("setpriority", errno);
    *(volatile int *)argument = 1;
    for (;;) pause();
    return NULL;
}

static void be_nice(void) {
    volatile int begun = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, gives_way, (void *)&begun);
    while (!begun) usleep(1000);
    wait_by_epoll();
}

/* Whether system calls go to the handler. */
static volatile char to_handler;
static volatile int handled;

static void handle_call(int signal) {
    (void)signal;
    to_handler = 0;
    handled = 1;
}

static void dispatch(void) {
    signal(SIGSYS, handle_call);
    /* PR_SET_SYSCALL_USER_DISPATCH and PR_SYS_DISPATCH_ON of linux/prctl.h, Linux 5.11. */
    if (prctl(59, 1, 0, 0, &to_handler)) fail("prctl", errno);
    wait_by_epoll();
    to_handler = 1;
    syscall(SYS_getppid);
    if (!handled) fail("a call that was to go to the handler", 0);
}

static void *goes_on(void *argument) {
    (void)argument;
    struct timespec moment = {0, 1000000};
    while (take()) nanosleep(&moment, NULL);
    look();
    printf("fine\n");
    fflush(stdout);
    _exit(7);
}

static void headless(void) {
    if (!take()) _exit(7);
    pthread_t thread;
    pthread_create(&thread, NULL, goes_on, NULL);
    pthread_exit(NULL);
}

/* Whatever the kernel joins such a page with begins a page further down. */
static void map_below_all(void) {
    static unsigned long starts[4096];
    size_t found = 0;
    char line[512], access[5];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) fail("maps", errno);
    while (found < sizeof starts / sizeof *starts && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%*x %4s", &starts[found], access) == 2 && access[1] == 'w') found++;
    fclose(maps);
    size_t mapped = 0;
    while (found--) {
        void *below = (void *)(starts[found] - 4096);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        if (mmap(below, 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) continue;
        if (madvise(below, 4096, MADV_DONTFORK)) fail("madvise", errno);
        mapped++;
    }
    if (!mapped) fail("nothing could be mapped below anything", 0);
}

static void beside(void) {
    do {
        if (comes(-1)) map_below_all();
    } while (take());
}

static void confide(int advice) {
    if (madvise(held, PAGES * 4096, advice)) fail("madvise", errno);
    for (size_t page = 0; page < PAGES; page++) {
        make_secret(held + page * 512 + page % 64, page + 1);
    }
    while (take()) {}
    for (size_t page = 0; page < PAGES; page++)
        for (size_t at = page % 64; at < page % 64 + 4; at++) held[page * 512 + at] = (page * 512 + at) / 8 * 0x9E3779B97F4A7C15ull;
}

int main(int count, char **arguments) {
    const char *moment = count > 1 ? arguments[1] : "";
    if (!strcmp(moment, "timeout")) feed();
    hold();
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(moment, "trap")) trap(0);
    else if (!strcmp(moment, "ignored")) trap(1);
    else if (!strcmp(moment, "sequence")) sequence();
    else if (!strcmp(moment, "timeout")) timeouts();
    else if (!strcmp(moment, "handler")) handler();
    else if (!strcmp(moment, "mask")) mask();
    else if (!strcmp(moment, "sandbox")) sandbox();
    else if (!strcmp(moment, "vfork")) vforks();
    else if (!strcmp(moment, "direction")) direction();
    else if (!strcmp(moment, "alignment")) alignment();
    else if (!strcmp(moment, "narrow")) narrow();
    else if (!strcmp(moment, "dispatch")) dispatch();
    else if (!strcmp(moment, "nice")) be_nice();
    else if (!strcmp(moment, "beside")) beside();
    else if (!strcmp(moment, "confides")) confide(MADV_DONTDUMP);
    else if (!strcmp(moment, "tells")) confide(MADV_DODUMP);
    else if (!strcmp(moment, "headless")) headless();
    else fail("no such moment", 0);
    look();
    printf("fine\n");
    return 7;
}
