/* Holds blocks of many sizes, of which each has bytes of its own, and does what the lines of its standard input say:
 *   free    frees two of three, none of which it looks at
 *   again   allocates as many as it has freed
 *   check   looks at all that it has
 *   child   has a forked child free, allocate and look
 *   all     frees everything
 * It answers with the same line, or ends with 1 if a byte is not what it was. Where the blocks are is in memory that is never away. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 60000 };

static struct {
    unsigned char *block;
    unsigned size;
} held[COUNT];

static const unsigned sizes[] = {16, 40, 100, 200, 500, 1000, 1500, 3000, 9000, 100000};

static unsigned char byte(unsigned n, unsigned at)
{
    return (unsigned char)(n * 31 + at / 64 * 7 + 1);
}

static void hold(unsigned n)
{
    /* Long ones seldom. */
    unsigned size = sizes[n % 401 == 0 ? 9 : n % 23 == 0 ? 8 : n % 8];
    held[n].size = size;
    if (!(held[n].block = malloc(size)))
        exit(3);
    for (unsigned at = 0; at < size; at++)
        held[n].block[at] = byte(n, at);
}

static void let_go(unsigned n)
{
    free(held[n].block);
    held[n].block = NULL;
}

static int goes(unsigned n)
{
    /* Here some between those that stay, there all that lie beside each other. */
    return n < COUNT / 2 ? n % 3 != 0 : n < COUNT / 6 * 5;
}

static void each(int all, void (*act)(unsigned))
{
    for (unsigned n = 0; n < COUNT; n++)
        if (all ? held[n].block != NULL : goes(n))
            act(n);
}

static void look(unsigned n)
{
    for (unsigned at = 0; at < held[n].size; at++)
        if (held[n].block[at] != byte(n, at)) {
            fprintf(stderr, "byte %u of the %u of block %u is %d\n", at, held[n].size, n, held[n].block[at]);
            exit(1);
        }
}

static void child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        each(1, look);
        each(1, let_go);
        for (unsigned n = 0; n < COUNT; n++)
            hold(n);
        each(1, look);
        _exit(0);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "the child ended with %d\n", status);
        exit(1);
    }
}

int main(void)
{
    char line[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (mlock(held, sizeof held) != 0)
        return 2;
    for (unsigned n = 0; n < COUNT; n++)
        hold(n);
    printf("%d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "free\n"))
            each(0, let_go);
        else if (!strcmp(line, "again\n"))
            each(0, hold);
        else if (!strcmp(line, "check\n"))
            each(1, look);
        else if (!strcmp(line, "child\n"))
            child();
        else if (!strcmp(line, "all\n"))
            each(1, let_go);
        fputs(line, stdout);
    }
    return 0;
}
