/* A program that is kept at a limit by the policy that its environment names. */
#include <memfold.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEN = 32 << 20, PAGE = 4096, WORDS = PAGE / sizeof(long) };

int main(void)
{
    struct memfold_stats stats = { 0 };
    long *table = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int error = memfold_start(NULL);

    if (table == MAP_FAILED || error) {
        printf("not started: %d\n", error);
        return 1;
    }
    for (long n = 0; n < LEN / (long)sizeof(long); n++)
        table[n] = n % WORDS < 8 ? n : 7;
    if (memfold_register(table, LEN))
        return 1;
    /* Nothing is old enough to go by its age. Whoever runs us ends us if this never ends. */
    while (stats.evicted_bytes < LEN / 2) {
        usleep(5000);
        memfold_stats(&stats);
    }
    for (long n = 0; n < LEN / (long)sizeof(long); n++)
        if (table[n] != (n % WORDS < 8 ? n : 7))
            return 1;
    memfold_stats(&stats);
    printf("every word read back, %llu pages lost\n", (unsigned long long)stats.pages_lost);
    return memfold_stop() || stats.pages_lost;
}
