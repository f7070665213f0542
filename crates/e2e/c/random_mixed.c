/* The random mixed loop by which allocators are compared: S slots; each turn picks one, frees it if it is
 * full, else allocates 16 to 1040 bytes there and touches both ends.
 *
 * usage: random_mixed SLOTS THREADS SECONDS
 * prints: millions of malloc and free calls per second, resident kilobytes at the end
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t slots;
static double seconds;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void *work(void *arg) {
    uint64_t random = 0x9e3779b97f4a7c15u * ((uint64_t)(uintptr_t)arg + 1);
    char **slot = calloc(slots, sizeof *slot);
    uint64_t turns = 0;
    double end = now() + seconds;
    while (now() < end) {
        for (int i = 0; i < 10000; i++, turns++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            char **here = &slot[(random >> 32) % slots];
            if (*here) {
                free(*here);
                *here = NULL;
            } else {
                size_t size = 16 + (random & 0xffff) % 1025;
                *here = malloc(size);
                (*here)[0] = 1;
                (*here)[size - 1] = 1;
            }
        }
    }
    return (void *)(uintptr_t)turns;
}

static long resident_kb(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kb = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1)
            break;
    if (file)
        fclose(file);
    return kb;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s SLOTS THREADS SECONDS\n", argv[0]);
        return 2;
    }
    slots = strtoul(argv[1], NULL, 10);
    int threads = atoi(argv[2]);
    seconds = atof(argv[3]);
    pthread_t id[64];
    if (slots == 0 || threads < 1 || threads > 64 || seconds <= 0) {
        fprintf(stderr, "%s: slots and seconds must be positive, threads 1 to 64\n", argv[0]);
        return 2;
    }
    double start = now();
    uint64_t turns = 0;
    if (threads == 1) {
        turns = (uint64_t)(uintptr_t)work(NULL);
    } else {
        for (intptr_t i = 0; i < threads; i++)
            pthread_create(&id[i], NULL, work, (void *)i);
        for (int i = 0; i < threads; i++) {
            void *count;
            pthread_join(id[i], &count);
            turns += (uint64_t)(uintptr_t)count;
        }
    }
    printf("%.1f %ld\n", (double)turns / (now() - start) / 1e6, resident_kb());
    return 0;
}
