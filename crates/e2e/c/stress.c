/* Threads that allocate, resize, free, hand blocks to each other, come and go, and fork; every block carries
 * a pattern that is checked whenever it changes hands. Also: allocation in thread-exit destructors.
 *
 * usage: stress THREADS SECONDS SEED
 * Prints how many blocks were checked; exits 1 at the first one that does not hold what it should.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 300, EXCHANGE = 512 };

struct block {
    size_t size;
    uint64_t tag;
    unsigned char bytes[];
};

static _Atomic(struct block *) exchange[EXCHANGE];
static atomic_ulong checked, exits;
static double end;
static pthread_key_t early_key, late_key;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random * 0x2545f4914f6cdd1du;
}

static void fill(struct block *b, size_t from) {
    for (size_t i = from; i < b->size; i += 61)
        b->bytes[i] = (unsigned char)(b->tag + i);
    if (b->size > from)
        b->bytes[b->size - 1] = (unsigned char)(b->tag + b->size - 1);
}

static void check(struct block *b, size_t upto) {
    for (size_t i = 0; i < upto; i += 61)
        if (b->bytes[i] != (unsigned char)(b->tag + i)) {
            fprintf(stderr, "block %p of %zu bytes: byte %zu is %u, not %u\n", (void *)b, b->size, i,
                    b->bytes[i], (unsigned char)(b->tag + i));
            _exit(1);
        }
    atomic_fetch_add_explicit(&checked, 1, memory_order_relaxed);
}

static size_t some_size(uint64_t *random) {
    uint64_t r = next(random);
    switch (r % 16) {
    case 0:
        return (r >> 8) % 300000;
    case 1:
    case 2:
        return (r >> 8) % 20000;
    default:
        return (r >> 8) % 1200;
    }
}

static struct block *make(uint64_t *random) {
    size_t size = some_size(random);
    size_t total = sizeof(struct block) + size;
    struct block *b;
    switch (next(random) % 8) {
    case 0:
        b = calloc(1, total);
        for (size_t i = 0; b && i < size; i++)
            if (b->bytes[i]) {
                fprintf(stderr, "calloc of %zu bytes: byte %zu is not zero\n", total, i);
                _exit(1);
            }
        break;
    case 1:
        b = aligned_alloc((size_t)16 << next(random) % 9, total);
        break;
    default:
        b = malloc(total);
    }
    if (!b) {
        fprintf(stderr, "no memory for %zu bytes\n", total);
        _exit(1);
    }
    b->size = size;
    b->tag = next(random);
    fill(b, 0);
    return b;
}

static void done(struct block *b) {
    if (b) {
        check(b, b->size);
        free(b);
    }
}

static void at_exit(void *value) {
    uint64_t random = (uint64_t)(uintptr_t)value | 1;
    struct block *b[20];
    for (int i = 0; i < 20; i++)
        b[i] = make(&random);
    for (int i = 0; i < 20; i++)
        done(b[i]);
    atomic_fetch_add(&exits, 1);
}

static void *work(void *arg) {
    uint64_t random = (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u | 1;
    struct block *slot[SLOTS] = {0};
    pthread_setspecific(early_key, (void *)(uintptr_t)random);
    pthread_setspecific(late_key, (void *)(uintptr_t)random);
    uint64_t turns = 5000 + next(&random) % 50000;
    for (uint64_t turn = 0; turn < turns && now() < end; turn++) {
        struct block **here = &slot[next(&random) % SLOTS];
        switch (next(&random) % 8) {
        case 0:
            *here = atomic_exchange(&exchange[next(&random) % EXCHANGE], *here);
            if (*here)
                check(*here, (*here)->size);
            break;
        case 1:
            if (*here) {
                size_t size = some_size(&random), old = (*here)->size;
                struct block *b = realloc(*here, sizeof *b + size);
                if (!b)
                    _exit(1);
                check(b, size < old ? size : old);
                b->size = size;
                fill(b, 0);
                *here = b;
            }
            break;
        default:
            if (*here) {
                done(*here);
                *here = NULL;
            } else {
                *here = make(&random);
            }
        }
    }
    for (int i = 0; i < SLOTS; i++)
        done(slot[i]);
    return NULL;
}

/* In a child: every block in the exchange belongs to some thread that is not here. */
static void in_child(uint64_t random) {
    for (int i = 0; i < EXCHANGE; i++)
        done(atomic_exchange(&exchange[i], NULL));
    pthread_t id;
    struct block *b[500];
    for (int i = 0; i < 500; i++)
        b[i] = make(&random);
    end = now() + 0.05;
    if (pthread_create(&id, NULL, work, (void *)(uintptr_t)random) || pthread_join(id, NULL))
        _exit(1);
    for (int i = 0; i < 500; i++)
        done(b[i]);
    malloc_trim(0);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s THREADS SECONDS SEED\n", argv[0]);
        return 2;
    }
    int threads = atoi(argv[1]);
    end = now() + atof(argv[2]);
    uint64_t random = strtoull(argv[3], NULL, 10) * 2 + 1;
    pthread_t id[64];
    unsigned long made = 0;
    if (threads < 1 || threads > 64)
        return 2;
    /* One destructor runs before the allocator's own, the other after it. */
    pthread_key_create(&early_key, at_exit);
    for (int i = 0; i < threads; i++)
        pthread_create(&id[i], NULL, work, (void *)(uintptr_t)(next(&random) | 1)), made++;
    pthread_key_create(&late_key, at_exit);
    for (int turn = 0; now() < end; turn++) {
        pthread_t *one = &id[turn % threads];
        pthread_join(*one, NULL);
        pthread_create(one, NULL, work, (void *)(uintptr_t)(next(&random) | 1)), made++;
        if (turn % 4 == 0) {
            pid_t pid = fork();
            if (pid == 0)
                in_child(next(&random) | 1);
            int status = -1;
            if (waitpid(pid, &status, 0) != pid || status != 0) {
                fprintf(stderr, "child %d: status %d\n", turn, status);
                return 1;
            }
        }
    }
    for (int i = 0; i < threads; i++)
        pthread_join(id[i], NULL);
    for (int i = 0; i < EXCHANGE; i++)
        done(atomic_exchange(&exchange[i], NULL));
    printf("%lu blocks checked, %lu threads, %lu exits\n", atomic_load(&checked), made, atomic_load(&exits));
    return 0;
}
