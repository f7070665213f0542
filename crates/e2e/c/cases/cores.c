/* The core of a folded program has every page once `memfold core` has put the folded ones back. */
#include "case.h"
#include "dying.h"
#include <elf.h>
#include <fcntl.h>

enum { OLD, REPEATED, CHANGED, NEW, RANGES };
enum { PAGES = LEN / PAGE };

static char *ranges[RANGES];

/* What a page holds in the end. */
static void expected(int range, size_t page, uint64_t *out)
{
    for (size_t i = 0; i < PAGE / 8; i++)
        out[i] = range == REPEATED ? page * 0x0101010101 : word(page * (PAGE / 8) + i) + range;
    if (range == CHANGED && page % 3 == 0)
        out[page % (PAGE / 8)] = ~page;
}

static void fill_range(int range)
{
    for (size_t page = 0; page < PAGES; page++)
        expected(range, page, (uint64_t *)(ranges[range] + page * PAGE));
}

/* What a core has at an address. Whether it has that. */
static int in_core(int fd, uintptr_t addr, void *out)
{
    Elf64_Ehdr head;
    Elf64_Phdr part;
    CHECK(pread(fd, &head, sizeof head, 0) == sizeof head);
    for (int i = 0; i < head.e_phnum; i++) {
        CHECK(pread(fd, &part, sizeof part, head.e_phoff + i * sizeof part) == sizeof part);
        if (part.p_type == PT_LOAD && part.p_vaddr <= addr && addr + PAGE <= part.p_vaddr + part.p_filesz)
            return pread(fd, out, PAGE, part.p_offset + (addr - part.p_vaddr)) == PAGE;
    }
    return 0;
}

/* Pages that are not as they were, in the ranges. */
static size_t wrong(const char *core)
{
    static uint64_t wanted[PAGE / 8], found[PAGE / 8];
    size_t count = 0;
    int fd = open(core, O_RDONLY);
    CHECK(fd >= 0);
    for (int range = OLD; range < RANGES; range++)
        for (size_t page = 0; page < PAGES; page++) {
            expected(range, page, wanted);
            count += !in_core(fd, (uintptr_t)ranges[range] + page * PAGE, found) || memcmp(wanted, found, PAGE) != 0;
        }
    CHECK(close(fd) == 0);
    return count;
}

static void folded_pages_are_put_back(void)
{
    if (!may_die_here())
        return;
    for (int range = OLD; range < RANGES; range++) {
        ranges[range] = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(ranges[range] != MAP_FAILED);
    }
    pid_t child = fork();
    if (child == 0) {
        fill_range(OLD);
        fill_range(REPEATED);
        fill_range(CHANGED);
        for (size_t page = 0; page < PAGES; page += 3)
            ((uint64_t *)(ranges[CHANGED] + page * PAGE))[page % (PAGE / 8)] = 0;
        wait_until_evicted(ranges[OLD]);
        wait_until_evicted(ranges[REPEATED]);
        wait_until_evicted(ranges[CHANGED]);
        /* When the last is away, what went first is compressed. */
        for (int i = 0; i < 2; i++)
            evicted();
        fill_range(NEW);
        wait_until_evicted(ranges[NEW]);
        /* Some are in view, and not as they were when they were folded. */
        for (size_t page = 0; page < PAGES; page += 3)
            ((uint64_t *)(ranges[CHANGED] + page * PAGE))[page % (PAGE / 8)] = ~page;
        abort();
    }
    const char *core = core_of_aborted(child);
    CHECK(core);
    if (!folded) {
        CHECK(wrong(core) == 0 && unlink(core) == 0);
        return;
    }
    /* How many came back meanwhile, read ahead of the touches above, is the pager's matter. */
    CHECK(wrong(core) > 0);
    char command[4096];
    const char *memfold = getenv("TESTED");
    CHECK(memfold && unsetenv("LD_PRELOAD") == 0);
    snprintf(command, sizeof command, "'%s' core %s --output whole >/dev/null", memfold, core);
    CHECK(system(command) == 0);
    CHECK(wrong("whole") == 0);
    /* Again, and where something stands already. */
    CHECK(WEXITSTATUS(system(strcat(command, " 2>/dev/null"))) == 2);
    CHECK(unlink(core) == 0 && unlink("whole") == 0);
}

CASES({"folded_pages_are_put_back", folded_pages_are_put_back})
