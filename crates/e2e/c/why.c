/* Holds memory of which it is known why it cannot be folded, or that it can, in parts of MiB as defined below. Prints its process id
   when all is there, behind it "pinned" if it could pin memory for a device, and goes on until its standard input ends. A line "read"
   has it read meanwhile what it holds cold, in an order that nobody foresees, a line "use" do that from then on all the time, a line
   "unlock" unlock what it has locked; it answers each with the same line. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define COLD (24 * MIB)
#define FORKED (8 * MIB)
#define RANDOM (12 * MIB)
#define WRITTEN (10 * MIB)
/* Together no more than a user may lock. */
#define LOCKED (5 * MIB)
#define PINNED (2 * MIB)
#define EXCLUDED (4 * MIB)
#define SHARED (5 * MIB)
#define MAPPED_FILE (16 * MIB)
#define BRK (3 * MIB)
#define STACK (5 * MIB)
/* Mappings of 32 KiB, each with a hole above it. */
#define SMALL (32 * 1024ul)
#define SMALLS 96

static void check(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

static uint64_t state = 88172645463325252u;

static uint64_t any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static char *map(size_t len, int flags, int fd) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

/* brk(2) past libc, of which nobody is told. */
static char *bare_brk(char *end) {
#if defined(__x86_64__)
    char *result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_brk), "D"(end) : "rcx", "r11", "memory");
    return result;
#else
    register long number __asm__("x8") = SYS_brk;
    register char *result __asm__("x0") = end;
    __asm__ volatile("svc #0" : "+r"(result) : "r"(number) : "memory");
    return result;
#endif
}

/* No page like another, and all of them small when compressed. */
static char *filled(size_t len) {
    char *at = map(len, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (size_t page = 0; page < len; page += PAGE) {
        memset(at + page, 'a' + page / PAGE % 26, PAGE);
        memcpy(at + page, &page, sizeof page);
    }
    return at;
}

static void *write_always(void *at) {
    for (;; usleep(20000))
        for (size_t page = 0; page < WRITTEN; page += PAGE) ((volatile char *)at)[page]++;
    return NULL;
}

static void *stand_deep(void *unused) {
    volatile char deep[STACK];
    for (size_t page = 0; page < STACK; page += PAGE) deep[page] = 1;
    for (;; pause()) (void)deep[0];
    return unused;
}

static char *locked;

/* Whether the memory is pinned, as a buffer of a ring. */
static int pin(void *at, size_t len) {
    struct io_uring_params parameters = {0};
    struct iovec buffer = {at, len};
    int ring = syscall(SYS_io_uring_setup, 1, &parameters);
    return ring >= 0 && syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0;
}

static int all(const char *path) {
    /* First, so that the child shares nothing else. */
    filled(FORKED);
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    if (fork() == 0) {
        char byte;
        close(ends[1]);
        /* Until the parent has ended. */
        _exit(read(ends[0], &byte, 1) != 0);
    }
    uint64_t *random = (uint64_t *)map(RANDOM, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (size_t n = 0; n < RANDOM / 8; n++) random[n] = any();
    locked = filled(LOCKED);
    check(mlock(locked, LOCKED) == 0, "mlock");
    check(mprotect(filled(EXCLUDED), EXCLUDED, PROT_READ) == 0, "mprotect");
    memset(map(SHARED, MAP_SHARED | MAP_ANONYMOUS, -1), 1, SHARED);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    check(file >= 0 && ftruncate(file, MAPPED_FILE) == 0, path);
    memset(map(MAPPED_FILE, MAP_SHARED, file), 1, MAPPED_FILE);
    char *heap = sbrk(0);
    check(bare_brk(heap + BRK) == heap + BRK, "brk");
    memset(heap, 1, BRK);
    for (int n = 0; n < SMALLS; n++) {
        char *at = mmap(NULL, SMALL + 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(at != MAP_FAILED && mprotect(at, SMALL, PROT_READ | PROT_WRITE) == 0, "a small mapping");
        memset(at, 1, SMALL);
    }
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK + MIB);
    check(pthread_create(&thread, &attributes, stand_deep, NULL) == 0, "a thread");
    check(pthread_create(&thread, NULL, write_always, filled(WRITTEN)) == 0, "a thread");
    return pin(filled(PINNED), PINNED);
}

static void read_all(volatile char *cold) {
    /* The step has no factor in common with the number of pages. */
    for (size_t n = 0, page = 0; n < COLD / PAGE; n++, page = (page + 2731) % (COLD / PAGE)) (void)cold[page * PAGE];
}

static void *read_always(void *cold) {
    for (;; usleep(1000)) read_all(cold);
    return NULL;
}

int main(int count, char **arguments) {
    char line[16];
    /* Whatever the system's setting: parts of huge pages would stay for what lies beside them. */
    check(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0, "prctl");
    int pinned = count > 1 && all(arguments[1]);
    char *cold = filled(COLD);
    pthread_t thread;
    printf("%d%s\n", getpid(), pinned ? " pinned" : "");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "unlock\n") == 0)
            check(munlock(locked, LOCKED) == 0, "munlock");
        else if (strcmp(line, "use\n") == 0)
            check(pthread_create(&thread, NULL, read_always, cold) == 0, "a thread");
        else
            read_all(cold);
        fputs(line, stdout);
        fflush(stdout);
    }
    return 0;
}
