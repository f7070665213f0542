/* System calls that read and write evicted memory, and memory that is pinned while it might be evicted. */
#include "case.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* A file that holds what `filled` does, on the file system of the working directory. */
static int file(int flags)
{
    char name[] = "case-file-XXXXXX";
    int plain = mkstemp(name);
    CHECK(plain >= 0);
    uint64_t *p = filled();
    CHECK(write(plain, p, LEN) == LEN && fsync(plain) == 0);
    int fd = open(name, O_RDWR | flags);
    int refused = fd < 0;
    CHECK(!refused || (flags && errno == EINVAL));
    if (refused)
        fd = open(name, O_RDWR);
    CHECK(unlink(name) == 0 && munmap(p, LEN) == 0);
    close(plain);
    return fd;
}

static void read_write_and_vectors(void)
{
    int fd = file(0);
    uint64_t *p = filled();
    for (int vectors = 0; vectors < 2; vectors++) {
        struct iovec parts[4];
        for (int i = 0; i < 4; i++)
            parts[i] = (struct iovec){(char *)p + (size_t)i * (LEN / 4), LEN / 4};
        wait_until_evicted(p);
        CHECK((vectors ? pwritev(fd, parts, 4, 0) : pwrite(fd, p, LEN, 0)) == LEN);
        wait_until_evicted(p);
        CHECK((vectors ? preadv(fd, parts, 4, 0) : pread(fd, p, LEN, 0)) == LEN);
        CHECK(intact(p));
    }
}

static void sockets(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    uint64_t *p = filled(), *q = filled();
    memset(q, 0, LEN);
    enum { PART = 32768 };
    wait_until_evicted(p);
    for (size_t at = 0; at < LEN; at += PART) {
        struct iovec out = {(char *)p + at, PART}, in = {(char *)q + at, PART};
        struct msghdr send = {.msg_iov = &out, .msg_iovlen = 1}, receive = {.msg_iov = &in, .msg_iovlen = 1};
        CHECK(sendmsg(pair[0], &send, 0) == PART && recvmsg(pair[1], &receive, 0) == PART);
    }
    CHECK(intact(q));
    /* The same by pieces on a stream, whose ends need not meet. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    memset(q, 0, LEN);
    wait_until_evicted(p);
    for (size_t at = 0; at < LEN; at += PART) {
        struct iovec out[2] = {{(char *)p + at, 1000}, {(char *)p + at + 1000, PART - 1000}};
        struct iovec in[2] = {{(char *)q + at, PART - 7}, {(char *)q + at + PART - 7, 7}};
        CHECK(writev(pair[0], out, 2) == PART && readv(pair[1], in, 2) == PART);
    }
    CHECK(intact(q));
}

static void futexes(void)
{
    uint32_t *p = (uint32_t *)evicted();
    for (size_t i = 0; i < LEN / 4; i += PAGE) {
        uint32_t seen = (uint32_t)(word(i / 2));
        CHECK(syscall(SYS_futex, p + i, FUTEX_WAIT_PRIVATE, seen + 1, NULL, NULL, 0) == -1 && errno == EAGAIN);
    }
    CHECK(intact((uint64_t *)p));
}

/* Operations that write to the word. */
static void futexes_that_are_written(void)
{
    uint64_t *p = filled();
    uint32_t *words[3], other = 0;
    for (int i = 0; i < 3; i++) {
        words[i] = (uint32_t *)(p + WORDS / 4 * (i + 1));
        *words[i] = 0;
    }
    wait_until_evicted(p);
    long set = FUTEX_OP(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 0);
    CHECK(syscall(SYS_futex, &other, FUTEX_WAKE_OP_PRIVATE, 1, 1, words[0], set) == 0 && *words[0] == 5);
    CHECK(syscall(SYS_futex, words[1], FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    CHECK(syscall(SYS_futex, words[2], FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    CHECK(*words[1] == (uint32_t)getpid() && *words[2] == (uint32_t)getpid());
    CHECK(syscall(SYS_futex, (void *)8, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EFAULT);
}

/* Its number, which older headers do not have. */
#define UFFDIO_MOVE_ 0xc028aa05UL

/* What the kernel says of structures that are not there. */
static void structures_that_are_not_there(void)
{
    uint64_t *p = evicted();
    CHECK(syscall(SYS_clone3, NULL, 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_clone3, (void *)8, 64) == -1 && errno == EFAULT);
    CHECK(ioctl(-1, UFFDIO_REGISTER, (void *)8) == -1 && errno == EBADF);
    CHECK(clone(NULL, p + WORDS, SIGCHLD, NULL) == -1 && errno == EINVAL);
    /* And of those of which only the beginning is. */
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + PAGE, PAGE, PROT_NONE) == 0);
    for (int there = 4; there <= 20; there += 8) {
        char *at = pages + PAGE - there;
        CHECK(ioctl(-1, UFFDIO_REGISTER, at) == -1 && errno == EBADF);
        CHECK(ioctl(-1, UFFDIO_MOVE_, at) == -1 && errno == EBADF);
        CHECK(syscall(SYS_clone3, at, 64) == -1 && errno == EFAULT);
    }
    CHECK(munmap(pages, 2 * PAGE) == 0);
    CHECK(intact(p));
}

static void direct_transfers(void)
{
    int fd = file(O_DIRECT);
    uint64_t *p = filled();
    for (int round = 0; round < 2; round++) {
        wait_until_evicted(p);
        CHECK(pwrite(fd, p, LEN, 0) == LEN);
        wait_until_evicted(p);
        memset(p, 0, LEN / 2);
        CHECK(pread(fd, p, LEN, 0) == LEN && intact(p));
    }
}

/* What a program maps of its ring. Completions are taken off the queue, or the next wait would end at once: on file systems
 * that cannot read without waiting (tmpfs) a worker of the kernel reads, and is not done when the submission is. */
struct ring {
    int fd;
    struct io_uring_params params;
    char *submissions, *completions;
    struct io_uring_sqe *entries;
};

/* Whether there is a ring: the kernel may have none (ENOSYS), or this process may not use it (EPERM). */
static int open_ring(struct ring *ring)
{
    struct io_uring_params *params = &ring->params;
    ring->fd = (int)syscall(SYS_io_uring_setup, 4, params);
    if (ring->fd < 0) {
        CHECK(errno == ENOSYS || errno == EPERM);
        return 0;
    }
    size_t submissions = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    size_t completions = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    int prot = PROT_READ | PROT_WRITE;
    ring->submissions = mmap(0, submissions, prot, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->completions = mmap(0, completions, prot, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->entries = mmap(0, params->sq_entries * sizeof *ring->entries, prot, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    CHECK(ring->submissions != MAP_FAILED && ring->completions != MAP_FAILED && ring->entries != MAP_FAILED);
    return 1;
}

/* One read into the registered buffer, waited for: the bytes read, or less than 0, an error number. */
static int read_fixed(struct ring *ring, int fd, char *to, size_t len, size_t offset)
{
    unsigned *last = (unsigned *)(ring->submissions + ring->params.sq_off.tail);
    unsigned slot = *last & (ring->params.sq_entries - 1);
    ring->entries[slot] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = fd, .off = offset,
                                                .addr = (uintptr_t)to, .len = (uint32_t)len};
    ((uint32_t *)(ring->submissions + ring->params.sq_off.array))[slot] = slot;
    __atomic_store_n(last, *last + 1, __ATOMIC_RELEASE);
    unsigned *first = (unsigned *)(ring->completions + ring->params.cq_off.head);
    unsigned *end = (unsigned *)(ring->completions + ring->params.cq_off.tail);
    unsigned submit = 1;
    while (__atomic_load_n(end, __ATOMIC_ACQUIRE) == *first) {
        long done = syscall(SYS_io_uring_enter, ring->fd, submit, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        CHECK(done >= 0 || errno == EINTR);
        submit -= done > 0;
    }
    struct io_uring_cqe *completed = (struct io_uring_cqe *)(ring->completions + ring->params.cq_off.cqes);
    int result = completed[*first & (ring->params.cq_entries - 1)].res;
    __atomic_store_n(first, *first + 1, __ATOMIC_RELEASE);
    return result;
}

/* The kernel writes to registered buffers by their frames: such a page must stay where it is. */
static void registered_buffers(void)
{
    struct ring ring = {0};
    uint64_t *p = evicted();
    if (!open_ring(&ring)) {
        printf("io_uring is not to be had: %s; nothing was read\n", strerror(errno));
        return;
    }
    struct iovec pinned = {p, LEN / 4};
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &pinned, 1) == 0);
    int fd = file(0);
    for (unsigned round = 0; round < 2; round++) {
        memset(p, 0, LEN / 4);
        /* The pager has time to take the pinned pages away. What is not pinned goes: the wait is for that. */
        if (folded)
            for (int tries = 0; away((char *)p + LEN / 4, LEN / 4 * 3) < LEN / PAGE / 2; tries++) {
                CHECK(tries < TRIES);
                usleep(1000);
            }
        usleep(100000);
        for (size_t at = 0; at < LEN / 4;) {
            int result = read_fixed(&ring, fd, (char *)p + at, LEN / 4 - at, at);
            if (result == -EINTR || result == -EAGAIN)
                continue;
            errno = result < 0 ? -result : 0;
            CHECK(result > 0);
            at += (size_t)result;
        }
        CHECK(intact(p));
    }
}

CASES({"read_write_and_vectors", read_write_and_vectors}, {"sockets", sockets}, {"futexes", futexes},
      {"futexes_that_are_written", futexes_that_are_written},
      {"structures_that_are_not_there", structures_that_are_not_there},
      {"direct_transfers", direct_transfers}, {"registered_buffers", registered_buffers})
