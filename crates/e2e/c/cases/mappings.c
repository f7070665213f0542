/* Moving a mapping of which the pager has registered a part, so that the kernel has it in pieces. Before Linux 6.17,
 * mremap(2) takes one piece at a time. */
#include "case.h"
#include <sys/resource.h>

enum { IN_USE = LEN / 2 };

/* Memory whose first half is in use and stays, while the second is evicted. */
static uint64_t *half_evicted(void)
{
    uint64_t *p = filled();
    for (int tries = 0; folded && away((char *)p + IN_USE, LEN - IN_USE) < (LEN - IN_USE) / PAGE / 10 * 9; tries++) {
        CHECK(tries < 30000);
        for (size_t i = 0; i < IN_USE / 8; i += PAGE / 8)
            CHECK(((volatile uint64_t *)p)[i] == word(i));
        usleep(1000);
    }
    return p;
}

static void moves(uint64_t *p)
{
    uint64_t *there = mmap(0, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(there != MAP_FAILED);
    CHECK(mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
    CHECK(intact(there));
}

static void moved_to_a_place_of_choice(void)
{
    moves(half_evicted());
}

/* A child has the pieces of its parent, and what had come back before the fork is registered in neither. */
static pid_t child_with_pieces(uint64_t *p)
{
    CHECK(intact(p));
    return fork();
}

static void moved_in_a_child(void)
{
    uint64_t *p = half_evicted();
    pid_t child = child_with_pieces(p);
    if (child == 0) {
        moves(p);
        _exit(0);
    }
    CHECK(child_is_well(child) && intact(p));
}

static void grown_in_a_child(void)
{
    uint64_t *p = half_evicted();
    pid_t child = child_with_pieces(p);
    if (child == 0) {
        /* What comes behind keeps it from growing where it is. */
        mmap((char *)p + LEN, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        uint64_t *longer = mremap(p, LEN, 2 * LEN, MREMAP_MAYMOVE);
        CHECK(longer != MAP_FAILED && intact(longer) && longer[WORDS] == 0);
        _exit(0);
    }
    CHECK(child_is_well(child) && intact(p));
}

/* While no memory can be mapped, nothing can be brought back, and so nothing moved. */
static void moved_without_memory(void)
{
    uint64_t *p = half_evicted();
    uint64_t *there = mmap(0, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(there != MAP_FAILED);
    struct rlimit usual, none;
    CHECK(getrlimit(RLIMIT_AS, &usual) == 0);
    none = usual;
    none.rlim_cur = PAGE;
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    uint64_t *moved = mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    int refusal = errno;
    CHECK(setrlimit(RLIMIT_AS, &usual) == 0);
    CHECK(moved == there || (moved == MAP_FAILED && refusal == ENOMEM));
    CHECK(intact(moved == there ? there : p));
}

/* A program whose only thread maps nothing finds nothing where it has unmapped something, also while a pager starts in it. */
static void unmapped_stays_unmapped(void)
{
    for (int round = 0; round < 8; round++) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t *p = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            void *hole = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(p != MAP_FAILED && hole != MAP_FAILED && munmap(hole, PAGE) == 0);
            fill(p);
            wait_until_evicted(p);
            unsigned char here;
            CHECK(mincore(hole, PAGE, &here) == -1 && errno == ENOMEM);
            CHECK(intact(p));
            _exit(0);
        }
        CHECK(child_is_well(child));
    }
}

CASES({"moved_to_a_place_of_choice", moved_to_a_place_of_choice},
      {"moved_in_a_child", moved_in_a_child},
      {"grown_in_a_child", grown_in_a_child},
      {"moved_without_memory", moved_without_memory},
      {"unmapped_stays_unmapped", unmapped_stays_unmapped})
