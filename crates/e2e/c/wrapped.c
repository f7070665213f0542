/* A program that counts what it allocates by functions around libc's, and leaves `free` and the aligned ones as they are. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);
void *__libc_valloc(size_t size);
void *__libc_pvalloc(size_t size);
void __libc_free(void *block);

#include "check.h"

static size_t calls;

void *malloc(size_t size)
{
    calls++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    calls++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    calls++;
    return __libc_realloc(old, size);
}

static size_t used(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

int main(void)
{
    /* One step of `for` each, so that whatever is kept for the next is there at the first look. */
    size_t before = 0;
    for (int i = 0; i < 2000; i++) {
        if (i == 100)
            before = used();
        char *text = strdup("a block that libc allocates");
        text = realloc(text, 100000);
        CHECK(text && strcmp(text, "a block that libc allocates") == 0 && malloc_usable_size(text) >= 100000);
        free(text);
        char *aligned = aligned_alloc(256, 1024);
        memset(aligned, 'x', 1024);
        aligned = realloc(aligned, 200000);
        CHECK(aligned && aligned[0] == 'x' && aligned[1023] == 'x');
        free(aligned);
        char *zero = calloc(50, 1000);
        CHECK(zero && zero[0] == 0 && zero[49999] == 0);
        __libc_free(zero);
        void *blocks[] = {__libc_memalign(4096, 10000), __libc_valloc(10000), __libc_pvalloc(10000)};
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
            CHECK(blocks[k] && (uintptr_t)blocks[k] % 4096 == 0 && malloc_usable_size(blocks[k]) >= 10000);
            free(blocks[k]);
        }
    }
    CHECK(calls >= 6000);
    /* What is freed is there for the next: 2000 rounds allocate some 700 MiB. */
    CHECK(used() < before + (16 << 20));
    printf("every block is freed\n");
}
