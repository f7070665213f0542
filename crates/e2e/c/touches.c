/* Two threads touch known pages of one mapping, one by reading, one by writing, while a third one waits in read(2), by which
 * the kernel writes to a page of it. Prints the mapping's first page's number.
 *
 * Usage: touches SECONDS. Page n of the mapping, after it was filled once: touched again and again if n % 4 is 0 (read) or 1
 * (written), by the system call if it is the last but one, and otherwise never again; until the end, when those with n % 4 = 2
 * are looked at. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 2048, CALLS = PAGES - 2 };

static volatile char *base;
static volatile int stop;
static int ends[2];

static void *touch(void *argument) {
    long rest = (long)argument;
    for (char value = 0; !stop; value++) {
        for (long page = rest; page < PAGES; page += 4) {
            if (rest == 0)
                (void)base[page * PAGE];
            else
                base[page * PAGE] = value;
        }
        usleep(1000);
    }
    return NULL;
}

static void *wait_for_bytes(void *argument) {
    (void)argument;
    return read(ends[0], (char *)base + CALLS * PAGE, 8) == 8 ? NULL : "the bytes were lost";
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    base = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || pipe(ends) != 0)
        return 1;
    for (long page = 0; page < PAGES; page++)
        base[page * PAGE] = (char)page;
    printf("%lu\n", (unsigned long)base / PAGE);
    fflush(stdout);
    pthread_t threads[3];
    if (pthread_create(&threads[0], NULL, touch, (void *)0) || pthread_create(&threads[1], NULL, touch, (void *)1) ||
        pthread_create(&threads[2], NULL, wait_for_bytes, NULL))
        return 1;
    usleep((useconds_t)(seconds * 5e5));
    if (write(ends[1], "8 bytes!", 8) != 8)
        return 1;
    usleep((useconds_t)(seconds * 5e5));
    stop = 1;
    void *lost = NULL;
    for (int n = 0; n < 3; n++)
        if (pthread_join(threads[n], &lost) || lost)
            return 2;
    for (long page = 2; page < CALLS; page += 4)
        if (base[page * PAGE] != (char)page)
            return 3;
    if (memcmp((char *)base + CALLS * PAGE, "8 bytes!", 8) != 0)
        return 2;
    return 7;
}
