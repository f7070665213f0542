/* Programs that are short of something: address space, descriptors, threads, mappings. */
#include "case.h"
#include <fcntl.h>
#include <signal.h>
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
static void fork_with_tasks_left(int left)
{
    uint64_t *p = evicted();
    limit(RLIMIT_NPROC, (rlim_t)(threads() + left));
    pid_t child = fork();
    if (child == 0)
        _exit(!(threads() == 1 && intact(p) && away(p, LEN) == 0));
    CHECK(child_is_well(child) && intact(p));
    wait_until_evicted(p);
    CHECK(intact(p));
}

static void a_child_may_have_no_thread(void)
{
    fork_with_tasks_left(1);
}

static void a_child_may_have_two_threads(void)
{
    fork_with_tasks_left(3);
}

static void a_child_may_have_one_thread(void)
{
    fork_with_tasks_left(2);
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
      {"mappings_run_out", mappings_run_out}, {"all_memory_is_locked", all_memory_is_locked},
      {"a_child_may_have_no_thread", a_child_may_have_no_thread},
      {"a_child_may_have_one_thread", a_child_may_have_one_thread},
      {"a_child_may_have_two_threads", a_child_may_have_two_threads})
