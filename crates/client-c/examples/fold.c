/* A program that keeps a cold table: it registers it, says that it is not needed soon, waits until it is folded,
 * and finds every byte again.
 *
 *   cc fold.c $(pkg-config --cflags --libs memfold) -o fold && ./fold
 */
#include <memfold.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEN = 32 << 20, RECORD = 64 };

static void record(char *to, int number)
{
    memset(to, ' ', RECORD);
    snprintf(to, RECORD, "{\"id\": %d, \"name\": \"customer %d\", \"city\": \"Oslo\"}", number, number);
}

static void check(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "%s: %s\n", what, strerror(-error));
        exit(error == -95 /* ENOTSUP */ ? 3 : 1);
    }
}

int main(void)
{
    struct memfold_options options = { .cold_age_ms = 100 };
    struct memfold_stats stats;
    char expected[RECORD];
    char *table = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (table == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (int n = 0; n < LEN / RECORD; n++)
        record(table + n * RECORD, n);

    check(memfold_start(&options), "memfold_start");
    check(memfold_register(table, LEN), "memfold_register");
    check(memfold_hint(table, LEN, MEMFOLD_DONT_NEED_SOON), "memfold_hint");
    for (int tries = 0; tries < 1000; tries++) {
        memfold_stats(&stats);
        if (stats.evicted_bytes == LEN)
            break;
        usleep(20000);
    }
    printf("%llu MiB folded into %llu MiB\n", (unsigned long long)stats.evicted_bytes >> 20,
           (unsigned long long)stats.overhead_bytes >> 20);

    for (int n = 0; n < LEN / RECORD; n++) {
        record(expected, n);
        if (memcmp(table + n * RECORD, expected, RECORD)) {
            fprintf(stderr, "record %d changed\n", n);
            return 1;
        }
    }
    memfold_stats(&stats);
    printf("every record read back, %llu pages lost\n", (unsigned long long)stats.pages_lost);
    check(memfold_unregister(table, LEN), "memfold_unregister");
    check(memfold_stop(), "memfold_stop");
    return stats.pages_lost || !stats.pages_restored;
}
