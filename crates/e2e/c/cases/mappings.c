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
        CHECK(tries < TRIES);
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

/* What JavaScript engines do: much is reserved, and parts of it become accessible. */
static void parts_of_a_long_reservation(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, usable = PROT_READ | PROT_WRITE;
    char *all = mmap(0, 8ul << 30, PROT_NONE, flags, -1, 0);
    CHECK(all != MAP_FAILED);
    uint64_t *p = (uint64_t *)(all + (3ul << 30) + 5 * PAGE);
    CHECK(mprotect(p, LEN, usable) == 0);
    fill(p);
    wait_until_evicted(p);
    pid_t child = fork();
    if (child == 0)
        _exit(!intact(p));
    CHECK(child_is_well(child));
    CHECK(mprotect(p, LEN, PROT_NONE) == 0 && mprotect(p, LEN, usable) == 0);
    CHECK(intact(p));
    wait_until_evicted(p);
    /* Given up, and used again. */
    CHECK(mmap(p, LEN, PROT_NONE, flags | MAP_FIXED, -1, 0) == p && mprotect(p, LEN, usable) == 0);
    for (size_t i = 0; i < WORDS; i++)
        CHECK(p[i] == 0);
    fill(p);
    wait_until_evicted(p);
    CHECK(intact(p));
    /* A file in its middle is a file. */
    uint64_t *q = (uint64_t *)(all + (1ul << 30));
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && ftruncate(fd, LEN) == 0);
    CHECK(mmap(q, LEN, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == q && mprotect(q, LEN, usable) == 0);
    fill(q);
    wait_until_evicted(evicted());
    CHECK(away(q, LEN) == 0 && intact(q));
    uint64_t *same = mmap(0, LEN, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(same != MAP_FAILED && intact(same));
    /* What is left of the reservation on both sides of it goes on. */
    uint64_t *behind = (uint64_t *)(all + (1ul << 30) + LEN);
    CHECK(mprotect(behind, LEN, usable) == 0);
    fill(behind);
    wait_until_evicted(behind);
    CHECK(intact(behind));
    CHECK(munmap(all, 8ul << 30) == 0);
}

/* Waits until nine tenths of the pieces are evicted, whose words are those of `word` and the number of the piece, and reads them. */
static void come_back(uint64_t **pieces, int count, size_t len)
{
    for (int tries = 0; folded; tries++) {
        size_t gone = 0;
        for (int n = 0; n < count; n++)
            gone += away(pieces[n], len);
        if (gone >= count * len / PAGE / 10 * 9)
            break;
        CHECK(tries < TRIES);
        usleep(1000);
    }
    for (int n = 0; n < count; n++)
        for (size_t i = 0; i < len / 8; i++)
            CHECK(pieces[n][i] == word(i) + n);
}

/* What JavaScript engines do too: many pieces, each for itself. */
static void many_small_pieces(void)
{
    enum { PIECE = 64 << 10, PIECES = 160 };
    static uint64_t *pieces[PIECES];
    for (int n = 0; n < PIECES; n++) {
        char *p = mmap(0, PIECE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED && munmap(p + PIECE, PAGE) == 0);
        pieces[n] = (uint64_t *)p;
        for (size_t i = 0; i < PIECE / 8; i++)
            pieces[n][i] = word(i) + n;
    }
    come_back(pieces, PIECES, PIECE);
}

/* What Ruby does: pages of 16 KiB, each mapped with as much again to align it, of which the rest is given back. */
static void a_heap_of_small_mappings(void)
{
    enum { PIECE = 16 << 10, PIECES = 400 };
    static uint64_t *pieces[PIECES];
    for (int n = 0; n < PIECES; n++) {
        char *p = mmap(0, 2 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED);
        char *aligned = p + PIECE - (uintptr_t)p % PIECE;
        CHECK(munmap(p, aligned - p) == 0);
        CHECK(aligned == p + PIECE || munmap(aligned + PIECE, p + PIECE - aligned) == 0);
        pieces[n] = (uint64_t *)aligned;
        for (size_t i = 0; i < PIECE / 8; i++)
            pieces[n][i] = word(i) + n;
    }
    come_back(pieces, PIECES, PIECE);
}

/* An allocator on the heap of brk(2): it grows in small steps, is cut short, and grows again. */
static void a_heap_of_its_own(void)
{
    enum { STEP = 4096 + 512 };
    char *start = sbrk(0);
    CHECK(start != (void *)-1 && sbrk(PAGE - (uintptr_t)start % PAGE) == start);
    uint64_t *p = sbrk(0);
    for (int done = 0; done < LEN; done += STEP)
        CHECK(sbrk(done + STEP < LEN ? STEP : LEN - done) != (void *)-1);
    CHECK(sbrk(0) == (char *)p + LEN);
    fill(p);
    wait_until_evicted(p);
    pid_t child = fork();
    if (child == 0) {
        char *end = (char *)p + LEN;
        CHECK(intact(p) && sbrk(LEN) == end && *(uint64_t *)end == 0);
        _exit(0);
    }
    CHECK(child_is_well(child) && intact(p));
    wait_until_evicted(p);
    /* What is given up is new when it comes again. */
    CHECK(brk((char *)p + LEN / 2) == 0 && sbrk(LEN / 2) == (char *)p + LEN / 2);
    for (size_t n = WORDS / 2; n < WORDS; n++)
        CHECK(p[n] == 0);
    fill(p);
    wait_until_evicted(p);
    CHECK(intact(p));
    CHECK(brk((void *)-1) == -1 && errno == ENOMEM && intact(p));
    wait_until_evicted(p);
    /* Below the heap: libc says yes, and nothing happens. */
    CHECK(brk(0) == 0 && sbrk(0) == (char *)p + LEN && intact(p));
}

/* What is not to be evicted comes to lie where a heap has just been. */
static void what_comes_after_a_heap(void)
{
    char *p = sbrk(0);
    CHECK(p != (void *)-1 && sbrk(PAGE - (uintptr_t)p % PAGE) == p);
    p = sbrk(LEN);
    CHECK(p != (void *)-1);
    fill((uint64_t *)p);
    CHECK(brk(p) == 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED_NOREPLACE;
    CHECK(mmap(p, LEN, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
    fill((uint64_t *)p);
    uint64_t *other = evicted();
    CHECK(away(p, LEN) == 0 && intact((uint64_t *)p) && intact(other));
}

CASES({"moved_to_a_place_of_choice", moved_to_a_place_of_choice},
      {"moved_in_a_child", moved_in_a_child},
      {"grown_in_a_child", grown_in_a_child},
      {"moved_without_memory", moved_without_memory},
      {"unmapped_stays_unmapped", unmapped_stays_unmapped},
      {"parts_of_a_long_reservation", parts_of_a_long_reservation},
      {"many_small_pieces", many_small_pieces},
      {"a_heap_of_small_mappings", a_heap_of_small_mappings},
      {"a_heap_of_its_own", a_heap_of_its_own},
      {"what_comes_after_a_heap", what_comes_after_a_heap})
