/* Many small mappings, each with a hole above it: makes them, fills them with what shrinks, leaves them alone, reads and compares all of
   it, and gives them back. Prints what each took by its own clock, and how many mappings the kernel counts meanwhile.

   Usage: small_mappings [COUNT [KIB [SECONDS]]], 40000 of 64 KiB and 30 s unless said otherwise. Ends with 1 where a byte is wrong or a
   call fails. */
#define _GNU_SOURCE
#include "measure.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HOLE 4096ul

static uint64_t word(size_t mapping, size_t n) {
    return (mapping * 2654435761u + n / 16) & 0xffffff;
}

int main(int count_of_arguments, char **arguments) {
    size_t many = count_of_arguments > 1 ? strtoul(arguments[1], NULL, 10) : 40000;
    size_t size = (count_of_arguments > 2 ? strtoul(arguments[2], NULL, 10) : 64) * 1024;
    unsigned seconds = count_of_arguments > 3 ? atoi(arguments[3]) : 30;
    char **at = malloc(many * sizeof *at);
    check(at != NULL, "memory");
    double began = now();
    for (size_t i = 0; i < many; i++) {
        at[i] = mmap(NULL, size + HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(at[i] != MAP_FAILED && munmap(at[i] + size, HOLE) == 0, "mmap");
    }
    printf("mmap %.2f us each", (now() - began) * 1e6 / many);
    began = now();
    for (size_t i = 0; i < many; i++) {
        uint64_t *p = (uint64_t *)at[i];
        for (size_t n = 0; n < size / 8; n++) p[n] = word(i, n);
    }
    printf(", filled in %.2f s; mappings %lu", now() - began, count("/proc/self/maps", NULL));
    printf(", resident %lu MiB\n", count("/proc/self/status", "VmRSS:") / 1024);
    fflush(stdout);
    sleep(seconds);
    printf("after %u s: mappings %lu", seconds, count("/proc/self/maps", NULL));
    printf(", resident %lu MiB\n", count("/proc/self/status", "VmRSS:") / 1024);
    began = now();
    for (size_t i = 0; i < many; i++) {
        uint64_t *p = (uint64_t *)at[i];
        for (size_t n = 0; n < size / 8; n++)
            if (p[n] != word(i, n)) {
                fprintf(stderr, "mapping %zu, word %zu is wrong\n", i, n);
                return 1;
            }
    }
    printf("read and compared in %.2f s; mappings %lu", now() - began, count("/proc/self/maps", NULL));
    printf(", resident %lu MiB\n", count("/proc/self/status", "VmRSS:") / 1024);
    began = now();
    for (size_t i = 0; i < many; i++) check(munmap(at[i], size) == 0, "munmap");
    printf("munmap %.2f us each\n", (now() - began) * 1e6 / many);
    return 0;
}
