/* Memory of which one half is always in use and the other rests, which is enlarged and moved as a whole.
 *
 *   enlarged MIB    says "ready"; at the line "enlarge" it makes its MIB twice as long (mremap, which may move them), writes to what is new, looks at all of it,
 *                   and shrinks it again; at "move" it moves all of it to an address of its choice, and back. It answers with the line. Where a call of these is
 *                   refused, or a byte is wrong, it says so and ends with status 1, and with 7 at the end of its input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul

static size_t len;
static volatile char *held;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what, size_t at) {
    fprintf(stderr, "WRONG: %s at %zu: %s\n", what, at, strerror(errno));
    _exit(1);
}

static uint64_t word_at(size_t at) { return at % 512 ? at / PAGE : (at + 7) * 0x9E3779B97F4A7C15ull; }

static void fill(size_t from, size_t to) {
    for (size_t at = from; at < to; at += 8) *(volatile uint64_t *)(held + at) = word_at(at);
}

static void look(size_t to, const char *what) {
    for (size_t at = 0; at < to; at += 8)
        if (*(volatile uint64_t *)(held + at) != word_at(at)) fail(what, at);
}

static void *use_half(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        for (size_t at = 0; at < len / 2; at += PAGE) (void)held[at];
        pthread_mutex_unlock(&lock);
        usleep(1000);
    }
    return unused;
}

/* By the instruction: nobody is told of it. */
static void resize(size_t from, size_t to, int flags, void *where) {
    long moved = syscall(SYS_mremap, held, from, to, flags, where);
    if (moved == -1) fail(where ? "a move was refused" : "a resize was refused", to);
    held = (char *)moved;
}

int main(int count, char **arguments) {
    len = (count > 1 ? strtoul(arguments[1], NULL, 10) : 64) << 20;
    held = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (held == MAP_FAILED) fail("mmap", len);
    fill(0, len);
    pthread_t thread;
    if (pthread_create(&thread, NULL, use_half, NULL)) fail("pthread_create", 0);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) && line[0] != '\n') {
        pthread_mutex_lock(&lock);
        if (!strcmp(line, "move\n")) {
            void *before = (void *)held;
            void *other = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            resize(len, len, MREMAP_MAYMOVE | MREMAP_FIXED, other);
            look(len, "what was moved");
            resize(len, len, MREMAP_MAYMOVE | MREMAP_FIXED, before);
            look(len, "what was moved back");
        } else {
            resize(len, 2 * len, MREMAP_MAYMOVE, NULL);
            fill(len, 2 * len);
            look(2 * len, "what was enlarged");
            resize(2 * len, len, 0, NULL);
        }
        pthread_mutex_unlock(&lock);
        fputs(line, stdout);
        fflush(stdout);
    }
    return 7;
}
