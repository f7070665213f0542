/* Touches pages in an order that its caller knows. Its first output is the address of 64 pages. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 64, PAGE = 4096 };

static volatile char *pages;
static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    handled++;
}

static void *thread(void *argument) {
    pages[0]++;
    return argument;
}

static void *map(size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* A write to every page, three times, in order; then one read that lies across the pages 0 and 1. */
static int exact(void) {
    for (int round = 0; round < 3; round++)
        for (int page = 0; page < PAGES; page++)
            pages[page * PAGE] = round + 1;
    return *(volatile int *)(pages + PAGE - 2) == 0x00030000 ? 0 : 1;
}

/* What the kernel does to the memory: reads it, writes it, calls a handler on a stack in it, copies it for a child. */
static int kernel(void) {
    int ends[2];
    char back[PAGE * 2];
    stack_t stack = { .ss_sp = map(1 << 16), .ss_size = 1 << 16 };
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    memset((char *)pages, 7, PAGE * 2);
    if (pipe(ends) || write(ends[1], (char *)pages, sizeof back) != sizeof back)
        return 2;
    if (read(ends[0], (char *)pages + 4 * PAGE, sizeof back) != sizeof back)
        return 3;
    if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1) || handled != 1)
        return 4;
    if (system("exit 5") >> 8 != 5)
        return 5;
    return memcmp((char *)pages, (char *)pages + 4 * PAGE, sizeof back) ? 6 : 0;
}

/* All pages again and again, without a system call, for a third of a second of the program's time. */
static int busy(void) {
    clock_t end = clock() + CLOCKS_PER_SEC / 3;
    for (unsigned round = 0; round % 1024 || clock() < end; round++)
        pages[round % PAGES * PAGE] = 1;
    return 0;
}

static int threads(void) {
    pthread_t other;
    pages[5 * PAGE] = 1;
    if (pthread_create(&other, NULL, thread, NULL) || pthread_join(other, NULL))
        return 1;
    return pages[0] == 1 ? 9 : 2;
}

int main(int count, char **arguments) {
    if (count < 2)
        return 99;
    pages = map(PAGES * PAGE);
    if (write(1, (void *)&pages, sizeof pages) != sizeof pages)
        return 98;
    switch (arguments[1][0]) {
    case 'e': return exact();
    case 'k': return kernel();
    case 'b': return busy();
    case 't': return threads();
    case 's': raise(SIGTERM); /* fall through */
    default: return 97;
    }
}
