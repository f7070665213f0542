/* A program with an allocator of its own that works from the beginning of main on, as that of GNU Common Lisp does. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 64 << 20 };

static char room[ROOM] __attribute__((aligned(16)));
static size_t used;
static int ready;

static void fail(const char *what)
{
    if (write(2, what, strlen(what)) < 0)
        _exit(2);
    _exit(1);
}

void *malloc(size_t size)
{
    if (!ready)
        fail("malloc before main\n");
    size = (size + 31) & ~(size_t)15;
    if (used + size > ROOM)
        return 0;
    size_t *block = (size_t *)(room + used);
    used += size;
    *block = size - 16;
    return block + 2;
}

void free(void *block)
{
    if (!ready && block)
        fail("free before main\n");
}

void *calloc(size_t count, size_t size)
{
    return malloc(count * size);
}

void *realloc(void *old, size_t size)
{
    void *block = malloc(size);
    if (old && block)
        memcpy(block, old, ((size_t *)old)[-2] < size ? ((size_t *)old)[-2] : size);
    return block;
}

int main(void)
{
    ready = 1;
    char *text = 0;
    for (int i = 0; i < 1000; i++) {
        text = realloc(text, (size_t)(i + 1) * 8);
        memset(text + i * 8, 'a' + i % 26, 8);
    }
    for (int i = 0; i < 8000; i++)
        if (text[i] != 'a' + i / 8 % 26)
            return 1;
    return printf("every byte\n") < 0;
}
