/* What POSIX and glibc 2.36 say about the allocation functions, and what programs rely on. Prints each
 * failure and exits 1 if there was any. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
#define CHECK(what)                                                       \
    do {                                                                  \
        if (!(what)) {                                                    \
            failures++;                                                   \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what);    \
        }                                                                 \
    } while (0)

/* Results go through here, so that the compiler cannot know what the functions do. */
static void *volatile sink;
static void *opaque(void *p) {
    sink = p;
    return sink;
}
static volatile size_t huge = (size_t)PTRDIFF_MAX + 1, most = SIZE_MAX, zero = 0;

static int is_zero(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}

static void *early;
__attribute__((constructor)) static void allocate_before_main(void) {
    early = malloc(123);
    memset(early, 1, 123);
}
static void allocate_at_exit(void) {
    char *p = malloc(1000);
    if (!p)
        _exit(1);
    memset(p, 1, 1000);
    free(p);
}

static void sizes(void) {
    void *a = opaque(malloc(zero)), *b = opaque(malloc(zero));
    CHECK(a && b && a != b);
    free(a);
    free(b);
    errno = 0;
    CHECK(opaque(malloc(huge)) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(opaque(malloc(most)) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(opaque(calloc(most / 2, 3)) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(opaque(calloc(huge, 1)) == NULL && errno == ENOMEM);
    a = opaque(calloc(zero, 8));
    CHECK(a != NULL);
    free(a);
    for (size_t n = 1; n < 3000000; n += n / 3 + 1) {
        char *p = opaque(malloc(n));
        CHECK(p && (uintptr_t)p % _Alignof(max_align_t) == 0 && malloc_usable_size(p) >= n);
        memset(p, 0xff, malloc_usable_size(p));
        free(p);
        p = opaque(calloc(1, n));
        CHECK(p && is_zero(p, n));
        free(p);
    }
    CHECK(malloc_usable_size(NULL) == 0);
}

static void reallocs(void) {
    char *p = opaque(realloc(NULL, 10));
    CHECK(p != NULL);
    strcpy(p, "memory");
    for (size_t n = 10; n < 100000000; n *= 3) {
        p = opaque(realloc(p, n));
        CHECK(p && strcmp(p, "memory") == 0);
    }
    errno = 0;
    CHECK(opaque(realloc(p, huge)) == NULL && errno == ENOMEM && strcmp(p, "memory") == 0);
    errno = 0;
    CHECK(opaque(reallocarray(p, most / 2, 3)) == NULL && errno == ENOMEM && strcmp(p, "memory") == 0);
    p = opaque(reallocarray(p, 7, 3));
    CHECK(p && strcmp(p, "memory") == 0);
    errno = 77;
    CHECK(opaque(realloc(p, zero)) == NULL && errno == 77);
    p = opaque(realloc(NULL, zero));
    CHECK(p != NULL);
    free(p);
}

static void alignments(void) {
    void *p = &p;
    errno = 77;
    CHECK(posix_memalign(&p, 0, 10) == EINVAL && p == &p);
    CHECK(posix_memalign(&p, 4, 10) == EINVAL && p == &p);
    CHECK(posix_memalign(&p, 24, 10) == EINVAL && p == &p);
    CHECK(posix_memalign(&p, 48, 10) == EINVAL && p == &p);
    CHECK(posix_memalign(&p, 64, huge) == ENOMEM && p == &p);
    CHECK(errno == 77);
    for (size_t align = sizeof(void *); align <= (8u << 20); align *= 2)
        for (size_t n = 0; n < 200000; n = n * 5 + 3) {
            CHECK(posix_memalign(&p, align, n) == 0 && p && (uintptr_t)p % align == 0);
            CHECK(malloc_usable_size(p) >= n);
            memset(p, 1, n);
            free(p);
            p = opaque(aligned_alloc(align, n));
            CHECK(p && (uintptr_t)p % align == 0);
            char *q = opaque(realloc(p, n + 100));
            CHECK(q != NULL);
            free(q);
            p = opaque(memalign(align, n));
            CHECK(p && (uintptr_t)p % align == 0);
            free(p);
        }
    p = opaque(memalign(48, 10));
    CHECK(p && (uintptr_t)p % 64 == 0);
    free(p);
    errno = 0;
    CHECK(opaque(memalign(most / 2 + 2, 10)) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(opaque(aligned_alloc(64, most - 10)) == NULL && errno == ENOMEM);
    p = opaque(valloc(1));
    CHECK(p && (uintptr_t)p % 4096 == 0);
    free(p);
    p = opaque(pvalloc(5000));
    CHECK(p && (uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 8192);
    free(p);
    errno = 0;
    CHECK(opaque(pvalloc(most - 100)) == NULL && errno == ENOMEM);
}

static void errno_stays(void) {
    void *small = malloc(100), *large = malloc(1000000), *vast = malloc(100000000);
    memset(vast, 1, 100000000);
    errno = 77;
    free(small);
    free(large);
    free(vast);
    free(NULL);
    CHECK(errno == 77);
}

static void memory_goes_back(void) {
    enum { COUNT = 100000 };
    char **all = malloc(COUNT * sizeof *all);
    for (int i = 0; i < COUNT; i++)
        memset(all[i] = malloc(700), 1, 700);
    struct mallinfo2 full = mallinfo2();
    CHECK(full.uordblks + full.hblkhd >= COUNT * (size_t)700);
    for (int i = 0; i < COUNT; i++)
        free(all[i]);
    free(all);
    malloc_trim(0);
    struct mallinfo2 empty = mallinfo2();
    CHECK(empty.uordblks < full.uordblks / 4);
    CHECK(empty.arena < full.arena / 2);
    CHECK(malloc_trim(0) == 0);
}

static void harmless(void) {
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    FILE *file = tmpfile();
    CHECK(file && malloc_info(0, file) == 0 && ftell(file) > 0);
    CHECK(malloc_info(1, file) == -1);
    fclose(file);
}

static void forks(void) {
    char *before = malloc(5000);
    strcpy(before, "kept");
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int bad = strcmp(before, "kept") != 0;
            free(before);
            for (int n = 1; n < 2000; n++) {
                char *p = malloc((size_t)n * 17);
                bad |= !p;
                if (p)
                    memset(p, n, (size_t)n * 17);
                if (n % 3)
                    free(p);
            }
            _exit(bad);
        }
        int status = -1;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    CHECK(strcmp(before, "kept") == 0);
    free(before);
}

int main(void) {
    CHECK(early && ((char *)early)[122] == 1);
    free(early);
    atexit(allocate_at_exit);
    sizes();
    reallocs();
    alignments();
    errno_stays();
    memory_goes_back();
    harmless();
    forks();
    puts(failures ? "failed" : "conforms");
    return failures != 0;
}
