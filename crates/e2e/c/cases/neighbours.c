/* Others who reach for the same memory: a reader from outside, a debugger, a userfaultfd of the program's own, advice to
 * swap. */
#include "case.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>

/* Memory of which the child has the address and nothing else. */
static uint64_t *reserved(void)
{
    uint64_t *p = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void read_from_outside(void)
{
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t parent = getpid();
    uint64_t *p = reserved();
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        uint64_t *copy = malloc(LEN);
        CHECK(copy && read(go[0], &byte, 1) == 1);
        struct iovec here = {copy, LEN}, there = {p, LEN};
        CHECK(process_vm_readv(parent, &here, 1, &there, 1, 0) == LEN && intact(copy));
        _exit(0);
    }
    fill(p);
    wait_until_evicted(p);
    CHECK(write(go[1], "g", 1) == 1);
    CHECK(child_is_well(child) && intact(p));
}

/* What a debugger gets of evicted memory: an error or the truth, never zeros. */
static void read_by_a_debugger(void)
{
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t parent = getpid();
    uint64_t *p = reserved();
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte, name[64];
        CHECK(read(go[0], &byte, 1) == 1);
        snprintf(name, sizeof name, "/proc/%d/mem", parent);
        int fd = open(name, O_RDONLY);
        CHECK(fd >= 0);
        int refused = 0;
        for (size_t i = 0; i < WORDS; i += PAGE / 8) {
            uint64_t value = 0;
            ssize_t got = pread(fd, &value, 8, (off_t)(uintptr_t)(p + i));
            CHECK(got == 8 ? value == word(i) : got == -1 && errno == EIO);
            refused += got != 8;
        }
        if (getenv("CASE_TELL"))
            fprintf(stderr, "%d of %d pages refused\n", refused, LEN / PAGE);
        _exit(0);
    }
    fill(p);
    wait_until_evicted(p);
    CHECK(write(go[1], "g", 1) == 1);
    CHECK(child_is_well(child) && intact(p));
}

static void *serve(void *arg)
{
    int fd = *(int *)arg;
    for (;;) {
        struct uffd_msg message;
        if (read(fd, &message, sizeof message) != sizeof message)
            return NULL;
        static char page[PAGE];
        memset(page, 7, PAGE);
        uint64_t at = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)page, .len = PAGE};
        CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
    }
}

static void a_userfaultfd_of_its_own(void)
{
    static int fd;
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    CHECK(fd >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(ioctl(fd, UFFDIO_API, &api) == 0);
    uint64_t *p = evicted();
    char *q = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {(uintptr_t)q, LEN}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(fd, UFFDIO_REGISTER, &range) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve, &fd) == 0);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < LEN; i += PAGE)
            CHECK(q[i] == 7);
        usleep(200000);
        wait_until_evicted(p);
        CHECK(intact(p));
    }
    CHECK(madvise(q, LEN, MADV_DONTNEED) == 0 && q[LEN / 2] == 7);
    /* Memory that the pager has evicted becomes the program's to watch, whole. */
    wait_until_evicted(p);
    range.range.start = (uintptr_t)p;
    /* From an `int` the number comes with its sign in the upper half, of which the kernel takes no notice. */
    volatile int number = (int)UFFDIO_REGISTER;
    CHECK(ioctl(fd, number, &range) == 0 && intact(p));
    CHECK(madvise(p, LEN, MADV_DONTNEED) == 0 && ((char *)p)[LEN / 2] == 7);
}

/* UFFDIO_MOVE, which headers may not have yet. */
struct move {
    uint64_t to, from, len, mode;
    int64_t moved;
};

static void pages_that_it_moves_away(void)
{
    enum { MOVED = 1 << 20, SKIP = 2 << 20 };
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    CHECK(fd >= 0);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 16};
    CHECK(ioctl(fd, UFFDIO_API, &api) == 0);
    uint64_t *p = filled();
    char *q = mmap(0, MOVED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {(uintptr_t)q, MOVED}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(fd, UFFDIO_REGISTER, &range) == 0);
    wait_until_evicted(p);
    struct move move = {(uintptr_t)q, (uintptr_t)p + SKIP, MOVED, 0, 0};
    while (move.len > 0) {
        CHECK(ioctl(fd, _IOWR(0xAA, 5, struct move), &move) == 0 || errno == EAGAIN);
        CHECK(move.moved > 0 || errno == EAGAIN);
        if (move.moved > 0)
            move.to += (uint64_t)move.moved, move.from += (uint64_t)move.moved, move.len -= (uint64_t)move.moved;
    }
    CHECK(ioctl(fd, UFFDIO_UNREGISTER, &range.range) == 0);
    for (size_t i = 0; i < MOVED / 8; i++)
        CHECK(((uint64_t *)q)[i] == word(SKIP / 8 + i));
    CHECK(p[0] == word(0) && p[WORDS - 1] == word(WORDS - 1));
}

static void advice_to_swap_and_to_populate(void)
{
    uint64_t *p = filled();
    static const int advice[] = {MADV_PAGEOUT, MADV_COLD, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_WILLNEED, MADV_HUGEPAGE};
    for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++) {
        wait_until_evicted(p);
        CHECK(madvise(p, LEN, advice[i]) == 0 || errno == EINVAL);
        CHECK(intact(p));
    }
}

static void without_huge_pages(void)
{
    CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
    uint64_t *p = evicted();
    CHECK(intact(p));
    CHECK(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0);
    uint64_t *q = evicted();
    CHECK(intact(q) && intact(p));
}

/* Pages that are in the system's swap, or on their way, when the pager wants them. */
static void pages_are_in_swap(void)
{
    uint64_t *p = filled();
    for (int round = 0; round < 10; round++) {
        CHECK(madvise(p, LEN, MADV_PAGEOUT) == 0);
        if (round % 2)
            usleep(30000);
        for (size_t i = (size_t)round * PAGE / 8; i < WORDS; i += 16 * PAGE / 8)
            p[i] = word(i);
        CHECK(intact(p));
        fill(p);
        wait_until_evicted(p);
    }
    CHECK(madvise(p, LEN, MADV_PAGEOUT) == 0 && intact(p));
    pid_t child = fork();
    if (child == 0)
        _exit(!intact(p));
    CHECK(child_is_well(child) && intact(p));
}

enum { HUGE = 2 << 20 };

/* Memory that begins where a huge page may. */
static uint64_t *aligned(void)
{
    char *room = mmap(0, LEN + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    return (uint64_t *)(((uintptr_t)room + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
}

/* Mappings that may be huge pages, as a whole, or in part, or no longer after a part was dropped. */
static void pages_are_huge(void)
{
    uint64_t *p = aligned();
    for (int round = 0; round < 3; round++) {
        fill(p);
        wait_until_evicted(p);
        CHECK(intact(p));
        fill(p);
        CHECK(madvise((char *)p + HUGE / 2, PAGE, MADV_DONTNEED) == 0);
        usleep(100000);
        CHECK(p[HUGE / 2 / 8] == 0 && p[HUGE / 2 / 8 + PAGE / 8] == word(HUGE / 2 / 8 + PAGE / 8));
        p[HUGE / 2 / 8] = 5;
        CHECK(p[HUGE / 2 / 8] == 5 && p[WORDS - 1] == word(WORDS - 1));
    }
}

/* Waits until memory for which huge pages are asked is evicted. Before Linux 6.18 it is not: the kernel can hang in a move of a part of one. */
static void wait_until_huge_is_evicted(const uint64_t *p)
{
    struct utsname kernel;
    int major = 0, minor = 0;
    CHECK(uname(&kernel) == 0 && sscanf(kernel.release, "%d.%d", &major, &minor) == 2);
    if (major > 6 || (major == 6 && minor >= 18))
        wait_until_evicted(p);
}

/* Memory for which huge pages are asked, as NumPy does for its arrays, and which is kept from children and may be merged, as QEMU's for its guests. Before it is
 * written, and while it is away. */
static void huge_pages_asked_for(void)
{
    uint64_t *p = aligned();
    for (int round = 0; round < 3; round++) {
        CHECK(madvise(p, LEN, MADV_HUGEPAGE) == 0 || errno == EINVAL);
        CHECK(madvise(p, LEN, MADV_MERGEABLE) == 0 || errno == EINVAL);
        fill(p);
        wait_until_huge_is_evicted(p);
        CHECK(madvise((char *)p + HUGE, HUGE, MADV_HUGEPAGE) == 0 || errno == EINVAL);
        CHECK(intact(p));
        /* What is not mapped is refused as ever. */
        CHECK(madvise(p, 1ul << 46, MADV_HUGEPAGE) == -1);
        wait_until_huge_is_evicted(p);
        for (size_t at = 0; at < LEN; at += HUGE / 2)
            CHECK(p[at / 8] == word(at / 8));
        p[HUGE / 8] = 7;
        pid_t child = fork();
        if (child == 0)
            _exit(p[HUGE / 8] != 7 || p[WORDS - 1] != word(WORDS - 1));
        CHECK(child_is_well(child));
        p[HUGE / 8] = word(HUGE / 8);
        CHECK(intact(p));
    }
    CHECK(madvise(p, LEN, MADV_DONTFORK) == 0);
    fill(p);
    wait_until_huge_is_evicted(p);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child_is_well(child) && intact(p));
}

enum { COLLAPSE = 25 };

/* Memory of which the program has huge pages made (MADV_COLLAPSE), as TCMalloc does: while it is there, and while it is away. */
static void huge_pages_made(void)
{
    uint64_t *p = aligned();
    for (int round = 0; round < 3; round++) {
        fill(p);
        madvise(p, LEN, COLLAPSE);
        CHECK(intact(p));
        wait_until_huge_is_evicted(p);
        madvise((char *)p + HUGE, LEN - HUGE, COLLAPSE);
        CHECK(intact(p));
        wait_until_huge_is_evicted(p);
        p[HUGE / 8] = 7;
        pid_t child = fork();
        if (child == 0) {
            madvise(p, LEN, COLLAPSE);
            _exit(p[HUGE / 8] != 7 || p[WORDS - 1] != word(WORDS - 1));
        }
        CHECK(child_is_well(child));
    }
    CHECK(madvise(p, 1ul << 46, COLLAPSE) == -1);
}

enum { KINDS = 3 };

/* What a page of a few kinds holds. */
static uint64_t of_kind(size_t page, size_t i)
{
    return word(page % KINDS * PAGE + i);
}

/* Whether every so many pages at `p` from `first` on hold what they should, where the kinds begin with `kind`. */
static int are_alike(const uint64_t *p, size_t kind, size_t first, size_t step)
{
    for (size_t page = first; page < LEN / PAGE; page += step)
        for (size_t i = 0; i < PAGE / 8; i++)
            if (p[page * PAGE / 8 + i] != of_kind(page + kind, i))
                return 0;
    return 1;
}

/* Pages that the kernel merges where they are alike, while they are folded, read and written. */
static void pages_are_merged(void)
{
    uint64_t *p = aligned();
    CHECK(madvise(p, LEN, MADV_MERGEABLE) == 0);
    for (size_t round = 0; round < 8; round++) {
        for (size_t i = 0; i < WORDS; i++)
            p[i] = of_kind(i / (PAGE / 8) + round, i % (PAGE / 8));
        for (size_t look = 0; look < 10; look++) {
            usleep(20000);
            CHECK(are_alike(p, round, look, 7));
            /* One of those that are alike becomes another, and back. */
            p[look * 100 * PAGE / 8] ^= 1;
            CHECK(p[(look * 100 + KINDS) * PAGE / 8] == of_kind(look * 100 + KINDS + round, 0));
            p[look * 100 * PAGE / 8] ^= 1;
        }
        CHECK(are_alike(p, round, 0, 1));
    }
    CHECK(madvise(p, LEN, MADV_UNMERGEABLE) == 0);
    fill(p);
    wait_until_evicted(p);
    CHECK(intact(p));
}

/* Memory in huge pages, where the kernel gives them. */
static uint64_t *huge(void)
{
    uint64_t *p = aligned();
    /* Past libc: what the pager does not know of. Before it looks at them, or the kernel refuses. */
    for (size_t at = 0; at < LEN; at += HUGE) {
        ((volatile uint64_t *)p)[at / 8] = 1;
        bare(SYS_madvise, (long)p + at, HUGE, COLLAPSE, 0, 0);
    }
    fill(p);
    return p;
}

/* How much of the memory of the process is in huge pages. */
static size_t in_huge_pages(void)
{
    size_t most = 0;
    /* The kernel goes from mapping to mapping, and misses what is moved from one to the other meanwhile. */
    for (int look = 0; look < 5; look++) {
        FILE *f = fopen("/proc/self/smaps_rollup", "r");
        char line[200];
        size_t kib = 0;
        CHECK(f);
        while (fgets(line, sizeof line, f))
            sscanf(line, "AnonHugePages: %zu", &kib);
        fclose(f);
        most = kib > most ? kib : most;
    }
    return most << 10;
}

/* Of which each page is read all the time: they are split to see that, and made huge again. */
static void huge_pages_in_use(void)
{
    uint64_t *p = huge();
    size_t least = in_huge_pages(), now = least;
    if (!folded || least < LEN - HUGE)
        return;
    /* What was set aside as one counts too, so that the number grows says that some were made. */
    for (int tries = 0; now <= least; tries++, now = in_huge_pages()) {
        CHECK(tries < TRIES);
        least = now;
        for (int round = 0; round < 20; round++)
            for (size_t n = 0, page = 0; n < LEN / PAGE; n++, page = (page + 1021) % (LEN / PAGE))
                CHECK(((volatile uint64_t *)p)[page * PAGE / 8] == word(page * PAGE / 8));
    }
    CHECK(intact(p));
}

/* Of each of which one page is read all the time: the others go. */
static void huge_pages_in_use_in_part(void)
{
    uint64_t *p = huge();
    /* That they are away for a moment, until one is read, is nothing: they stay so. */
    for (int tries = 0, calm = 0; folded && calm < 50; tries++) {
        CHECK(tries < TRIES);
        for (size_t at = 0; at < LEN; at += HUGE)
            CHECK(((volatile uint64_t *)p)[at / 8] == word(at / 8));
        calm = away(p, LEN) >= LEN / PAGE / 10 * 9 ? calm + 1 : 0;
        usleep(1000);
    }
    CHECK(intact(p));
}

/* Other memory in its place, evicted: what came back as soon as it had gone is left alone for longer each time. */
static uint64_t *evicted_anew(uint64_t *p)
{
    CHECK(intact(p) && munmap(p, LEN) == 0);
    return evicted();
}

/* A control page that somebody of the same user cuts short, fills with anything, and takes away. */
static void a_page_that_is_tampered_with(void)
{
    uint64_t *p = reserved();
    pid_t child = fork();
    if (child == 0) {
        fill(p);
        wait_until_evicted(p);
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folded ? getenv("MEMFOLD_CONTROL_DIR") : ".", getpid());
        int fd = open(path, folded ? O_RDWR : O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
        /* It goes away and comes back again and again: whoever counts or asks meets the page that is not there. */
        for (int i = 0; i < 20; i++)
            p = evicted_anew(p);
        /* Every word says something else now, a request among them. */
        static unsigned char junk[1 << 14];
        memset(junk, 0xa5, sizeof junk);
        for (int i = 0; i < 5; i++) {
            CHECK(pwrite(fd, junk, sizeof junk, 0) == sizeof junk);
            p = evicted_anew(p);
        }
        CHECK(unlink(path) == 0 && close(fd) == 0);
        CHECK(intact(evicted_anew(p)));
        exit(0);
    }
    CHECK(child_is_well(child));
    fill(p);
    wait_until_evicted(p);
    CHECK(intact(p));
}

CASES({"pages_are_in_swap", pages_are_in_swap}, {"pages_are_huge", pages_are_huge},
      {"read_from_outside", read_from_outside}, {"read_by_a_debugger", read_by_a_debugger},
      {"a_userfaultfd_of_its_own", a_userfaultfd_of_its_own},
      {"pages_that_it_moves_away", pages_that_it_moves_away},
      {"advice_to_swap_and_to_populate", advice_to_swap_and_to_populate}, {"without_huge_pages", without_huge_pages},
      {"huge_pages_asked_for", huge_pages_asked_for}, {"huge_pages_made", huge_pages_made}, {"pages_are_merged", pages_are_merged},
      {"huge_pages_in_use", huge_pages_in_use}, {"huge_pages_in_use_in_part", huge_pages_in_use_in_part},
      {"a_page_that_is_tampered_with", a_page_that_is_tampered_with})
