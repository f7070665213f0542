/* What the program keeps from core dumps, from its children or from the disk is not found there because a pager has copied
 * it. */
#include "case.h"
#include "dying.h"
#include "../secret.h"
#include <elf.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* A secret in each page, amid what shrinks. */
static void confide(void *at)
{
    for (size_t page = 0; page < LEN / PAGE; page++) {
        uint64_t *p = (uint64_t *)((char *)at + page * PAGE);
        for (size_t i = 0; i < PAGE / 8; i++)
            p[i] = word(i);
        make_secret(p + page % 16 * 4, page + 1);
    }
}

static void *some_memory(void)
{
    void *p = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* Each is found twice, and once if a part of it was overwritten. */
static size_t secrets_in(const unsigned char *bytes, size_t len)
{
    size_t count = 0;
    uint64_t w[3];
    for (size_t i = 0; i + sizeof w <= len; i++) {
        memcpy(w, bytes + i, sizeof w);
        if (w[0] && next(w[0]) == w[1] && next(w[1]) == w[2])
            count++;
    }
    return count;
}

/* Where the memory begins in a core; before it are the registers, of which some may just have been used to copy a page. */
static off_t memory_in(int core)
{
    Elf64_Ehdr head;
    CHECK(pread(core, &head, sizeof head, 0) == sizeof head && head.e_type == ET_CORE);
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        CHECK(pread(core, &part, sizeof part, head.e_phoff + i * sizeof part) == sizeof part);
        if (part.p_type == PT_LOAD)
            return part.p_offset;
    }
    return 0;
}

/* Secrets in the memory that a core has; of one that lies across the end of a part, the part that follows has the whole. */
static size_t secrets_in_file(const char *path)
{
    enum { PART = 1 << 20, OVERLAP = 23 };
    unsigned char *part = malloc(PART + OVERLAP);
    size_t count = 0, kept = 0;
    ssize_t got;
    int fd = open(path, O_RDONLY);
    CHECK(part && fd >= 0 && lseek(fd, memory_in(fd), SEEK_SET) > 0);
    while ((got = read(fd, part + kept, PART)) > 0) {
        count += secrets_in(part, kept + got);
        size_t len = kept + got;
        kept = len < OVERLAP ? len : OVERLAP;
        memmove(part, part + len - kept, kept);
    }
    CHECK(got == 0 && close(fd) == 0);
    /* A child that is forked later would have it in its core. */
    explicit_bzero(part, PART + OVERLAP);
    free(part);
    return count;
}

/* Secrets in this process's own memory, as a core would have it: what is away is not brought back for the question. */
static size_t secrets_in_memory(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int mem = open("/proc/self/mem", O_RDONLY), pagemap = open("/proc/self/pagemap", O_RDONLY);
    static unsigned char page[PAGE];
    char line[512];
    size_t count = 0;
    CHECK(maps && mem >= 0 && pagemap >= 0);
    while (fgets(line, sizeof line, maps)) {
        unsigned long lo, hi;
        char rights[8];
        CHECK(sscanf(line, "%lx-%lx %7s", &lo, &hi, rights) == 3);
        if (rights[0] != 'r' || strstr(line, "[v"))
            continue;
        for (; lo < hi; lo += PAGE) {
            uint64_t entry;
            if (pread(pagemap, &entry, 8, lo / PAGE * 8) != 8 || !(entry >> 62))
                continue;
            if (lo < (uintptr_t)page + PAGE && (uintptr_t)page < lo + PAGE)
                continue;
            if (pread(mem, page, PAGE, lo) == PAGE)
                count += secrets_in(page, PAGE);
        }
    }
    return count;
}

/* Has a child make secrets, and die when they are evicted, at once or when they are compressed; secrets in its core, -1 if it has none. */
static long secrets_in_core(void *(*make)(void), int compressed)
{
    pid_t child = fork();
    if (child == 0) {
        void *secrets = make();
        confide(secrets);
        if (away(secrets, LEN) != LEN / PAGE)
            wait_until_evicted(secrets);
        /* When the last is away, what went first is compressed. */
        for (int i = 0; i < 3 * compressed; i++)
            evicted();
        abort();
    }
    const char *core = core_of_aborted(child);
    long found = core ? (long)secrets_in_file(core) : -1;
    if (core)
        CHECK(unlink(core) == 0);
    return found;
}

static void *reserve(size_t len)
{
    void *p = mmap(0, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void *keep(void *p, size_t len)
{
    CHECK(madvise(p, len, MADV_DONTDUMP) == 0);
    return p;
}

static void *commit(void *p)
{
    CHECK(mprotect(p, LEN, PROT_READ | PROT_WRITE) == 0);
    return p;
}

static void *give(void *p)
{
    CHECK(madvise(p, LEN, MADV_DODUMP) == 0);
    return p;
}

static void *kept(void) { return keep(some_memory(), LEN); }
/* From the beginning, with access later. */
static void *kept_reserved(void) { return commit(keep(reserve(LEN), LEN)); }
/* So much is reserved that the pager knows it by its ends alone. */
static void *kept_reserved_long(void) { return commit((char *)keep(reserve(1ul << 33), 1ul << 33) + (1ul << 32)); }
/* The kernel complains of what is not mapped, and keeps the rest. */
static void *kept_around_a_hole(void)
{
    char *p = some_memory();
    CHECK(munmap(p + LEN / 2, PAGE) == 0 && madvise(p, LEN, MADV_DONTDUMP) == -1 && errno == ENOMEM);
    CHECK(mmap(p + LEN / 2, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    return keep(p + LEN / 2, PAGE) - LEN / 2;
}
static void *kept_and_given(void) { return give(kept()); }
/* As .NET and WebKit have their heaps: taken away again in between. */
static void *kept_and_given_again(void)
{
    char *p = (char *)keep(reserve(1ul << 33), 1ul << 33) + (1ul << 32);
    confide(give(commit(p)));
    CHECK(madvise(p, LEN, MADV_DONTNEED) == 0 && mprotect(p, LEN, PROT_NONE) == 0);
    return give(commit(keep(p, LEN)));
}
static void *no_dump(void)
{
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    return some_memory();
}

static void expect_none(void *(*make)(void), int compressed, size_t which)
{
    long found = secrets_in_core(make, compressed);
    if (found != 0)
        fprintf(stderr, "%ld secrets, way %zu, compressed %d\n", found, which, compressed);
    CHECK(found == 0);
}

static void core_dumps(void)
{
    if (!may_die_here())
        return;
    void *(*none[])(void) = {kept, kept_reserved, kept_reserved_long, kept_around_a_hole};
    void *(*all[])(void) = {some_memory, kept_and_given, kept_and_given_again};
    for (int compressed = 0; compressed < 2; compressed++) {
        for (size_t i = 0; i < sizeof none / sizeof *none; i++)
            expect_none(none[i], compressed, i);
        /* There is something to find where nothing is kept, unless it is on its way just then. */
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            int tries = 0;
            while (secrets_in_core(all[i], compressed) <= 0)
                CHECK(++tries < 100);
        }
    }
    CHECK(secrets_in_core(no_dump, 1) == -1);
}

static void children(void)
{
    void *wiped = some_memory(), *left = some_memory();
    CHECK(madvise(wiped, LEN, MADV_WIPEONFORK) == 0 && madvise(left, LEN, MADV_DONTFORK) == 0);
    confide(wiped);
    confide(left);
    uint64_t *other = evicted();
    /* What a child has no part of is folded, apart from what it has. */
    wait_until_evicted(left);
    CHECK(away(wiped, LEN) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < WORDS; i++)
            CHECK(((uint64_t *)wiped)[i] == 0);
        CHECK(secrets_in_memory() == 0);
        CHECK(intact(other));
        _exit(0);
    }
    CHECK(child_is_well(child));
    CHECK(intact(other));
    CHECK(secrets_in(left, LEN) == 2 * LEN / PAGE);
    /* A child has neither side of a hole, though the kernel complains of that. */
    char *around = some_memory();
    CHECK(munmap(around + LEN / 2, PAGE) == 0 && madvise(around, LEN, MADV_DONTFORK) == -1 && errno == ENOMEM);
    memset(around, 1, LEN / 2);
    CHECK(intact(evicted()));
    child = fork();
    if (child == 0)
        _exit(mincore(around, PAGE, (unsigned char[1]){0}) == 0 || errno != ENOMEM);
    CHECK(child_is_well(child) && around[LEN / 4] == 1);
    /* Children have it from now on. */
    CHECK(madvise(left, LEN, MADV_DOFORK) == 0);
    confide(left);
    wait_until_evicted(left);
    child = fork();
    if (child == 0) {
        CHECK(secrets_in(left, LEN) == 2 * LEN / PAGE);
        _exit(0);
    }
    CHECK(child_is_well(child));
}

/* What a child has again without the pager's knowledge it does not read as something else. */
static void children_past_libc(void)
{
    void *left = some_memory();
    CHECK(madvise(left, LEN, MADV_DONTFORK) == 0);
    confide(left);
    wait_until_evicted(left);
    CHECK(bare(SYS_madvise, (long)left, LEN, MADV_DOFORK, 0, 0) == 0);
    /* A child that cannot have it says so, and ends. */
    int said = dup(2), nowhere = open("/dev/null", O_WRONLY);
    CHECK(said >= 0 && dup2(nowhere, 2) == 2);
    pid_t child = fork();
    if (child == 0)
        _exit(secrets_in(left, LEN) != 2 * LEN / PAGE);
    int status;
    CHECK(dup2(said, 2) == 2 && child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : folded);
    CHECK(secrets_in(left, LEN) == 2 * LEN / PAGE);
}

/* What is locked into memory, or the kernel alone may not read, stays there. */
static void memory_that_stays(void)
{
    struct rlimit locked;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &locked) == 0);
    if (locked.rlim_cur < 4ul * LEN && geteuid() != 0) {
        printf("skipped: %lu bytes may be locked\n", (unsigned long)locked.rlim_cur);
        return;
    }
    void *before = some_memory(), *after = some_memory(), *on_fault = some_memory();
    void *mapped = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
    CHECK(mapped != MAP_FAILED && mlock(before, LEN) == 0);
    CHECK(mlock2(on_fault, LEN, MLOCK_ONFAULT) == 0);
    confide(before);
    confide(after);
    confide(on_fault);
    confide(mapped);
    CHECK(mlock(after, LEN) == 0);
    void *secret = 0;
#ifdef SYS_memfd_secret
    int fd = syscall(SYS_memfd_secret, 0);
    if (fd >= 0 && ftruncate(fd, LEN) == 0) {
        secret = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (secret == MAP_FAILED)
            secret = 0;
        else
            confide(secret);
    }
#endif
    uint64_t *other = evicted();
    CHECK(away(before, LEN) == 0 && away(after, LEN) == 0 && away(on_fault, LEN) == 0 && away(mapped, LEN) == 0);
    CHECK(!secret || secrets_in(secret, LEN) == 2 * LEN / PAGE);
    CHECK(intact(other));
}

CASES({"core_dumps", core_dumps}, {"children", children}, {"children_past_libc", children_past_libc},
      {"memory_that_stays", memory_that_stays})
