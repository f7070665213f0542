/* Maps as much as it may when memory of its own is folded (argv[1] is "folded") or at once, and prints how many times 16 MiB that was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 32 << 20, BLOCK = 16 << 20, PAGE = 4096 };

int main(int argc, char **argv)
{
    int folded = argc > 1 && strcmp(argv[1], "folded") == 0;
    char *memory = malloc(LENGTH);
    if (!memory)
        return 2;
    memset(memory, 1, LENGTH);
    char *page = (char *)(((size_t)memory + LENGTH / 2) & ~(size_t)(PAGE - 1));
    unsigned char there = 1;
    while (folded && (mincore(page, PAGE, &there) != 0 || there & 1))
        usleep(10000);
    int blocks = 0;
    while (mmap(0, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        blocks++;
    printf("%d\n", blocks);
    return 0;
}
