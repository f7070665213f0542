/* uring FILE [THREADS]: has the kernel read and write the file through io_uring, with buffers in memory that is folded, and looks at every byte; waits for timeouts of it
 * in between. So many threads beside it write and look at memory of their own. Goes on until the end of its standard input, then says "fine" and ends with status 7.
 * By bare system calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 64
#define BLOCK 16384ul
#define BLOCKS 512ul

static void fail(const char *what, long is) {
    fprintf(stderr, "WRONG: %s: %ld\n", what, is);
    fflush(stderr);
    _exit(1);
}

static int ring;
static struct io_uring_params params;
static char *submission, *completion;
static struct io_uring_sqe *entries;

static unsigned *in(char *where, unsigned offset) { return (unsigned *)(where + offset); }

static void set_up(void) {
    ring = syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring < 0) {
        printf("no io_uring here: %d\n", errno);
        exit(3);
    }
    size_t len = params.sq_off.array + params.sq_entries * 4;
    submission = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    len = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    completion = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (submission == MAP_FAILED || completion == MAP_FAILED || entries == MAP_FAILED) fail("mmap", errno);
}

/* Has the kernel do these, and waits for all. */
static void submit(const struct io_uring_sqe *wanted, unsigned number) {
    unsigned mask = *in(submission, params.sq_off.ring_mask);
    unsigned tail = *in(submission, params.sq_off.tail);
    for (unsigned i = 0; i < number; i++) {
        entries[(tail + i) & mask] = wanted[i];
        in(submission, params.sq_off.array)[(tail + i) & mask] = (tail + i) & mask;
    }
    atomic_store_explicit((_Atomic unsigned *)in(submission, params.sq_off.tail), tail + number, memory_order_release);
    long done = syscall(SYS_io_uring_enter, ring, number, 0, 0, NULL, 0);
    if (done != (long)number) fail("io_uring_enter", done < 0 ? -errno : done);
    unsigned head = *in(completion, params.cq_off.head);
    for (unsigned seen = 0; seen < number;) {
        unsigned there = atomic_load_explicit((_Atomic unsigned *)in(completion, params.cq_off.tail), memory_order_acquire);
        if (there == head) {
            done = syscall(SYS_io_uring_enter, ring, 0, number - seen, IORING_ENTER_GETEVENTS, NULL, 0);
            if (done < 0) fail("waiting in io_uring_enter", -errno);
            continue;
        }
        struct io_uring_cqe *event = (struct io_uring_cqe *)(completion + params.cq_off.cqes) + (head & *in(completion, params.cq_off.ring_mask));
        if (event->res != (event->user_data ? (int)BLOCK : -ETIME)) fail("what was done", event->res);
        head++, seen++;
        atomic_store_explicit((_Atomic unsigned *)in(completion, params.cq_off.head), head, memory_order_release);
    }
}

#define OWN (BLOCK * 16)

static atomic_int over;

/* A thread beside it: the word at each place is of the place, the thread, and how often it was written. */
static void *beside(void *argument) {
    uint64_t number = (uintptr_t)argument, *own = mmap(NULL, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) fail("mmap in a thread", errno);
    for (uint64_t round = 0; !atomic_load(&over) || round < 2; round++) {
        for (size_t at = 0; at < OWN / 8; at++) {
            if (round && own[at] != (at / 4 ^ number << 32) * (2 * round - 1)) fail("memory of a thread", at);
            own[at] = (at / 4 ^ number << 32) * (2 * round + 1);
        }
        usleep(20000 + number * 300);
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 2 && count != 3) return 2;
    int threads = count == 3 ? atoi(arguments[2]) : 0;
    pthread_t made[256];
    if (threads > 256) return 2;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&made[i], NULL, beside, (void *)(uintptr_t)i)) fail("pthread_create", errno);
    set_up();
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *held = mmap(NULL, BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *back = mmap(NULL, BLOCK * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || held == MAP_FAILED || back == MAP_FAILED) fail("open", errno);
    for (size_t at = 0; at < BLOCK * BLOCKS / 8; at++) ((uint64_t *)held)[at] = at / 4 * 0x9E3779B97F4A7C15ull;
    printf("ready\n");
    fflush(stdout);
    unsigned seed = 1;
    struct pollfd end = {0, POLLIN, 0};
    while (!poll(&end, 1, 0)) {
        struct io_uring_sqe wanted[8];
        size_t blocks[8];
        memset(wanted, 0, sizeof wanted);
        for (int i = 0; i < 8; i++) {
            blocks[i] = ((seed = seed * 1103515245u + 12345u) >> 8) % (BLOCKS / 8) * 8 + i;
            wanted[i] = (struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = file, .addr = (uintptr_t)(held + blocks[i] * BLOCK),
                                              .len = BLOCK, .off = blocks[i] * BLOCK, .user_data = 1};
        }
        submit(wanted, 8);
        for (int i = 0; i < 8; i++) wanted[i].opcode = IORING_OP_READ, wanted[i].addr = (uintptr_t)(back + i * BLOCK);
        submit(wanted, 8);
        for (int i = 0; i < 8; i++)
            if (memcmp(back + i * BLOCK, held + blocks[i] * BLOCK, BLOCK)) fail("a block", blocks[i]);
        struct __kernel_timespec time = {0, 5000000};
        struct io_uring_sqe timeout = {.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (uintptr_t)&time, .len = 1};
        submit(&timeout, 1);
    }
    for (size_t at = 0; at < BLOCK * BLOCKS / 8; at++)
        if (((uint64_t *)held)[at] != at / 4 * 0x9E3779B97F4A7C15ull) fail("memory", at);
    atomic_store(&over, 1);
    for (int i = 0; i < threads; i++) pthread_join(made[i], NULL);
    printf("fine\n");
    return 7;
}
