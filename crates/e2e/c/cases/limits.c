/* Programs that are short of something: address space, descriptors, threads, mappings. */
#include "case.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void limit(int what, rlim_t most)
{
    struct rlimit r = {most, most};
    CHECK(setrlimit(what, &r) == 0);
}

/* Bytes of address space in use. */
static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    return pages * PAGE;
}

static void address_space_runs_out(void)
{
    uint64_t *p = evicted();
    limit(RLIMIT_AS, address_space() + (32 << 20));
    int refused = 0;
    for (int i = 0; i < 64 && !refused; i++) {
        char *block = malloc(4 << 20);
        if (block)
            memset(block, 1, 4 << 20);
        else
            refused = errno == ENOMEM;
    }
    CHECK(refused);
    CHECK(mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(intact(p));
    wait_until_evicted(p);
    CHECK(intact(p));
}

static void descriptors_run_out(void)
{
    uint64_t *p = evicted();
    limit(RLIMIT_NOFILE, 16);
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    CHECK(errno == EMFILE);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0)
            _exit(!intact(p));
        CHECK(child_is_well(child));
    }
    CHECK(intact(p));
}

/* The limit counts all tasks of the user, who has no others; the pager's threads are among them. */
static void fork_with_tasks_left(uint64_t *p, int left)
{
    limit(RLIMIT_NPROC, (rlim_t)(threads() + left));
    pid_t child = fork();
    if (child == 0)
        _exit(!(threads() == 1 && intact(p) && away(p, LEN) == 0));
    CHECK(child_is_well(child) && intact(p));
    wait_until_evicted(p);
    CHECK(intact(p));
}

/* The kernel closes what tells of a process's pages to such a one, and so to its child. */
static void a_process_that_cannot_be_dumped_forks(void)
{
    uint64_t *p = evicted();
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(!intact(p));
    CHECK(child_is_well(child));
    CHECK(intact(p));
    wait_until_evicted(p);
    CHECK(intact(p));
}

static void a_child_may_have_no_thread(void)
{
    fork_with_tasks_left(evicted(), 1);
}

static void a_child_may_have_two_threads(void)
{
    fork_with_tasks_left(evicted(), 3);
}

static void a_child_may_have_one_thread(void)
{
    fork_with_tasks_left(evicted(), 2);
}

enum { GOING = 4 };

static atomic_int unmapped, forked;

/* Past the library; and then it goes on counting as a task. */
static void *unmaps_page_by_page(void *q)
{
    for (int i = 0; i < GOING; i++)
        for (size_t at = 0; at < LEN; at += PAGE)
            CHECK(bare(SYS_munmap, (long)((uint64_t **)q)[i] + (long)at, PAGE, 0, 0, 0) == 0);
    unmapped = 1;
    while (!forked)
        usleep(1000);
    return 0;
}

/* A page may be gone of which its parent's pager has not read yet that it is. */
static void a_child_may_have_no_thread_while_memory_goes(void)
{
    uint64_t *p = evicted(), *q[GOING];
    struct rlimit plenty;
    CHECK(getrlimit(RLIMIT_NPROC, &plenty) == 0);
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < GOING; i++)
            q[i] = evicted();
        unmapped = forked = 0;
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, unmaps_page_by_page, q) == 0);
        struct rlimit few = {(rlim_t)(threads() + 1), plenty.rlim_max};
        CHECK(setrlimit(RLIMIT_NPROC, &few) == 0);
        do {
            pid_t child = fork();
            if (child == 0)
                _exit(!intact(p));
            CHECK(child_is_well(child));
        } while (!unmapped);
        forked = 1;
        CHECK(setrlimit(RLIMIT_NPROC, &plenty) == 0 && pthread_join(thread, 0) == 0);
        CHECK(intact(p));
        wait_until_evicted(p);
    }
}

static void mappings_run_out(void)
{
    uint64_t *p = evicted();
    enum { MOST = 40000 };
    /* Neighbours of different rights are mappings of their own. */
    char *q = mmap(0, (size_t)MOST * 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(q != MAP_FAILED);
    int made = 0;
    while (made < MOST && mprotect(q + (size_t)made * 2 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0)
        made++;
    CHECK(made > 10000);
    CHECK(intact(p));
    wait_until_evicted(p);
    CHECK(intact(p));
    for (int i = 0; i < made; i++)
        q[(size_t)i * 2 * PAGE] = (char)i;
    for (int i = 0; i < made; i++)
        CHECK(q[(size_t)i * 2 * PAGE] == (char)i);
    CHECK(munmap(q, (size_t)MOST * 2 * PAGE) == 0);
    CHECK(intact(p));
}

/* Lines of /proc/self/maps, and what the kernel allows. */
static long mappings(void)
{
    char line[4096];
    long lines = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    for (; fgets(line, sizeof line, f); lines++)
        ;
    fclose(f);
    return lines;
}

static long most_mappings(void)
{
    long most = 0;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
    CHECK(f && fscanf(f, "%ld", &most) == 1);
    fclose(f);
    return most;
}

/* Memory of which pieces are away and the pieces between were never touched. */
static void mappings_run_out_beside_one_that_is_cut(void)
{
    enum { PIECES = 600, PIECE = 2 << 20, FILLED = 16 * PAGE };
    char *p = mmap(0, (size_t)2 * PIECES * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    /* Before any of it is registered. */
    long before = mappings();
    for (int i = 0; i < PIECES; i++)
        for (int n = 0; n < FILLED; n += 8)
            *(uint64_t *)(p + (size_t)2 * i * PIECE + n) = word(i + n);
    /* Some may come back before the last has gone. */
    for (int i = 0, tries = 0; folded && (i < PIECES || mappings() <= before + PIECES); tries++) {
        CHECK(tries < TRIES);
        if (i == PIECES)
            i = 0;
        while (i < PIECES && away(p + (size_t)2 * i * PIECE, FILLED) == FILLED / PAGE)
            i++;
        usleep(1000);
    }
    /* All that the kernel allows, but for some tens, which the pager has itself. */
    for (long left = most_mappings() - before - 128; left > 0; left--) {
        char *q = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(q != MAP_FAILED && mprotect(q, PAGE, PROT_READ) == 0);
        left--;
    }
    for (int i = 0; i < PIECES; i++)
        for (int n = 0; n < FILLED; n += 8)
            CHECK(*(uint64_t *)(p + (size_t)2 * i * PIECE + n) == word(i + n));
}

static void all_memory_is_locked(void)
{
    uint64_t *p = evicted();
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &r);
    int locked = mlockall(MCL_CURRENT) == 0;
    CHECK(!locked || away(p, LEN) == 0);
    CHECK(intact(p));
}

/* Twice of what its memory cgroup allows: plainly, the OOM killer ends it. */
static void more_than_its_cgroup_allows(void)
{
    enum { PARTS = 16 };
    uint64_t *parts[PARTS];
    for (int i = 0; i < PARTS; i++)
        parts[i] = evicted();
    for (int i = 0; i < PARTS; i++) {
        CHECK(intact(parts[i]));
        wait_until_evicted(parts[i]);
    }
}

CASES({"more_than_its_cgroup_allows", more_than_its_cgroup_allows},
      {"address_space_runs_out", address_space_runs_out}, {"descriptors_run_out", descriptors_run_out},
      {"mappings_run_out", mappings_run_out},
      {"mappings_run_out_beside_one_that_is_cut", mappings_run_out_beside_one_that_is_cut},
      {"all_memory_is_locked", all_memory_is_locked},
      {"a_process_that_cannot_be_dumped_forks", a_process_that_cannot_be_dumped_forks},
      {"a_child_may_have_no_thread", a_child_may_have_no_thread},
      {"a_child_may_have_no_thread_while_memory_goes", a_child_may_have_no_thread_while_memory_goes},
      {"a_child_may_have_one_thread", a_child_may_have_one_thread},
      {"a_child_may_have_two_threads", a_child_may_have_two_threads})
