/* Memory that is moved while other memory is moved to where it was, and dropped there.
 *
 *   followed MIB    says "ready"; at each line it reads it moves MIB of its memory to another place, and another thread moves other memory to where that was
 *                   as soon as it is gone, and drops it. Then it looks at all of it, answers with the line, and puts everything back as it was. At the line "fork"
 *                   a forked child does so.
 *                   At the end of its input it says "fine" and ends with status 7.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static size_t len;
static char *there, *elsewhere, *other;
static atomic_int gone;

static void fail(const char *what, size_t at) {
    fprintf(stderr, "WRONG: %s at %zu: %d\n", what, at, errno);
    fflush(stderr);
    _exit(1);
}

static char *map(int protection) {
    char *at = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("mmap", len);
    return at;
}

static void fill(char *at, uint64_t seed) {
    for (size_t page = 0; page < len; page += PAGE)
        for (size_t word = 0; word < PAGE; word += 8) *(uint64_t *)(at + page + word) = word % 64 ? seed : (seed + page + word) * 0x9E3779B97F4A7C15ull;
}

static void look(const char *at, uint64_t seed, const char *what) {
    for (size_t page = 0; page < len; page += PAGE)
        for (size_t word = 0; word < PAGE; word += 8)
            if (*(const uint64_t *)(at + page + word) != (word % 64 ? seed : (seed + page + word) * 0x9E3779B97F4A7C15ull)) fail(what, page + word);
}

static void move(char *from, char *to) {
    if (mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) fail("mremap", (size_t)from);
}

static void *take_its_place(void *argument) {
    while (!atomic_load(&gone)) {}
    move(other, there);
    /* A part at a time: each is reported. */
    for (size_t part = 0; part < len; part += len / 64)
        if (madvise(there + part, len / 64, MADV_DONTNEED)) fail("MADV_DONTNEED", part);
    return argument;
}

/* Moves it, has its place taken, and looks at all of it. */
static void move_and_look(void) {
    pthread_t thread;
    atomic_store(&gone, 0);
    if (pthread_create(&thread, NULL, take_its_place, NULL)) fail("pthread_create", 0);
    move(there, elsewhere);
    atomic_store(&gone, 1);
    pthread_join(thread, NULL);
    look(elsewhere, 3, "what was moved");
    for (size_t at = 0; at < len; at += PAGE)
        if (there[at]) fail("what was dropped", at);
}

int main(int count, char **arguments) {
    len = (count > 1 ? strtoul(arguments[1], NULL, 10) : 64) << 20;
    there = map(PROT_READ | PROT_WRITE);
    elsewhere = map(PROT_NONE);
    other = map(PROT_READ | PROT_WRITE);
    fill(there, 3);
    fill(other, 5);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) && line[0] != '\n') {
        if (!strcmp(line, "fork\n")) {
            int status;
            pid_t child = fork();
            if (child == 0) {
                move_and_look();
                _exit(0);
            }
            if (waitpid(child, &status, 0) != child || status) fail("a child", status);
        } else {
            move_and_look();
            move(elsewhere, there);
            elsewhere = map(PROT_NONE);
            other = map(PROT_READ | PROT_WRITE);
            fill(other, 5);
            look(there, 3, "what was moved back");
        }
        fputs(line, stdout);
        fflush(stdout);
    }
    puts("fine");
    return 7;
}
