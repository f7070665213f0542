/* Holds memory of three functions: one whose blocks nobody touches, one whose blocks are read all the time, and one that works with blocks which it
   frees at once. It does what the lines of its standard input say and repeats each. Built without frame pointers. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MIB = 1 << 20, COLD = 24 * MIB, HOT = 8 * MIB, BLOCK = 1000, LARGE = 300000 };

static char *cold[COLD / BLOCK + 16];
static char *volatile hot[HOT / BLOCK];
static int cold_count;

__attribute__((noinline)) static char *filled(size_t size) {
    char *block = malloc(size);
    if (!block) {
        exit(3);
    }
    for (size_t i = 0; i < size; i++) {
        block[i] = (char)(i & 15);
    }
    return block;
}

__attribute__((noinline)) static void hold_cold(void) {
    /* Half in small blocks, half in large ones. */
    int i = 0;
    for (int bytes = 0; bytes < COLD / 2; bytes += BLOCK) {
        cold[i++] = filled(BLOCK);
    }
    for (int bytes = 0; bytes < COLD / 2; bytes += LARGE) {
        cold[i++] = filled(LARGE);
    }
    cold_count = i;
}

__attribute__((noinline)) static void hold_hot(void) {
    for (int i = 0; i < HOT / BLOCK; i++) {
        hot[i] = filled(BLOCK);
    }
}

__attribute__((noinline)) static void hold_nothing(void) {
    for (int i = 0; i < 200000; i++) {
        free(filled(64));
    }
}

static void *use(void *unused) {
    (void)unused;
    for (;;) {
        for (int i = 0; i < HOT / BLOCK; i++) {
            if (hot[i]) {
                *(volatile char *)hot[i];
            }
        }
        usleep(5000);
    }
    return NULL;
}

static void *give_back(void *unused) {
    (void)unused;
    for (int i = 0; i < cold_count; i++) {
        free(cold[i]);
    }
    return NULL;
}

int main(void) {
    pthread_t user, other;
    char line[16];
    /* Whatever the system's setting: a huge page in which one block is read is all in use. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_create(&user, NULL, use, NULL);
    printf("%d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "hold\n")) {
            hold_cold();
            hold_hot();
            hold_nothing();
        } else if (!strcmp(line, "free\n")) {
            pthread_create(&other, NULL, give_back, NULL);
            pthread_join(other, NULL);
        }
        fputs(line, stdout);
    }
    return 0;
}
