/* Holds 64 MiB through two forks: once its control page's file system is full, and again in a child of the child. Prints "whole" and
 * ends with 0 if every byte is what it was. argv[1] is a file that is made as long as it can be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 64 << 20, PAGE = 4096 };

static int whole(const volatile char *memory)
{
    for (int round = 0; round < 3; round++) {
        usleep(300000);
        for (int at = 0; at < LENGTH; at += PAGE)
            if (memory[at] != 1)
                return 0;
    }
    return 1;
}

static int in_child(const volatile char *memory, int depth)
{
    pid_t child = fork();
    if (child == 0)
        _exit(whole(memory) && (depth == 0 || in_child(memory, depth - 1)) ? 0 : 1);
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
    char *memory = malloc(LENGTH);
    FILE *fill = argc > 1 ? fopen(argv[1], "w") : NULL;
    if (!memory || !fill)
        return 2;
    memset(memory, 1, LENGTH);
    usleep(700000);
    char zeros[PAGE] = {0};
    while (fwrite(zeros, 1, PAGE, fill) == PAGE && fflush(fill) == 0)
        ;
    if (!in_child(memory, 1) || !whole(memory))
        return 1;
    puts("whole");
    return 0;
}
