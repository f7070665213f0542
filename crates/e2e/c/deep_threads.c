/* Threads that have used 1 MiB of their stacks once and then wait. Prints what is resident, then how long the first instruction of each takes
   to run once it is woken, and how long all of them take to use as much again.

   Usage: deep_threads WHOSE [SECONDS [COUNT]]: on stacks that are `libc`'s or the program's `own`, which wait for so long; 10 and 200 unless
   said otherwise. Ends with 1 where a word on a stack is wrong or a call fails. */
#define _GNU_SOURCE
#include "measure.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STACK = 2 << 20, FRAME = 512, DEPTH = 250, MOST = 1000 };

static int ready[2], waiting[MOST][2];
static volatile double woken[MOST];

static unsigned long resident_mib(void) {
    return count("/proc/self/status", "VmRSS:") / 1024;
}

static __attribute__((noinline)) void use(uint64_t thread, uint64_t depth) {
    volatile uint64_t frame[FRAME];
    for (uint64_t n = 0; n < FRAME; n++) frame[n] = thread * n + depth;
    if (depth) use(thread, depth - 1);
    for (uint64_t n = 0; n < FRAME; n++) check(frame[n] == thread * n + depth, "a word on a stack");
}

static void *run(void *argument) {
    uintptr_t thread = (uintptr_t)argument;
    char byte;
    for (int round = 0; round < 3; round++) {
        use(thread, DEPTH);
        check(write(ready[1], "", 1) == 1 && read(waiting[thread][0], &byte, 1) == 1, "a pipe");
        woken[thread] = now();
    }
    return NULL;
}

static void await(uintptr_t threads) {
    char byte;
    while (threads--) check(read(ready[0], &byte, 1) == 1, "a pipe");
}

int main(int count, char **arguments) {
    int own = count > 1 && strcmp(arguments[1], "own") == 0;
    unsigned seconds = count > 2 ? atoi(arguments[2]) : 10;
    uintptr_t threads = count > 3 ? strtoul(arguments[3], NULL, 10) : 200;
    check(threads > 0 && threads <= MOST && pipe(ready) == 0, "threads");
    for (uintptr_t n = 0; n < threads; n++) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (own) {
            void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            check(stack != MAP_FAILED && pthread_attr_setstack(&attributes, stack, STACK) == 0, "a stack");
        } else {
            pthread_attr_setstacksize(&attributes, STACK);
        }
        check(pipe(waiting[n]) == 0 && pthread_create(&thread, &attributes, run, (void *)n) == 0, "a thread");
    }
    await(threads);
    printf("resident %lu MiB", resident_mib());
    fflush(stdout);
    sleep(seconds);
    printf(", after %u s %lu MiB", seconds, resident_mib());
    double sum = 0;
    for (uintptr_t n = 0; n < threads; n++) {
        double began = now();
        check(write(waiting[n][1], "", 1) == 1, "a pipe");
        await(1);
        sum += woken[n] - began;
    }
    printf("; woken after %.0f us", sum * 1e6 / threads);
    fflush(stdout);
    sleep(seconds);
    double began = now();
    for (uintptr_t n = 0; n < threads; n++) check(write(waiting[n][1], "", 1) == 1, "a pipe");
    await(threads);
    printf("; all used again in %.0f ms\n", (now() - began) * 1e3);
    return 0;
}
