/* Misuses the allocator in the way that its argument names, and prints "survived" if nothing came of it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 64, SMALL = 48, LARGE = 200000, PAGE = 4096 };

/* Results go through here, so that the compiler cannot know what the functions do. */
static void *volatile sink;
static char *opaque(void *p) {
    sink = p;
    return sink;
}

static void *free_it(void *block) {
    free(block);
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    char *block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        block[i] = opaque(malloc(SMALL));
    for (int i = 1; i < BLOCKS; i++)
        free(block[i]);

    if (!strcmp(how, "free-twice")) {
        free(block[5]);
    } else if (!strcmp(how, "free-twice-in-a-thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, free_it, block[5]);
        pthread_join(thread, NULL);
    } else if (!strcmp(how, "free-large-twice")) {
        char *large = opaque(malloc(LARGE));
        free(large);
        free(large);
    } else if (!strcmp(how, "free-inside")) {
        free(block[0] + 16);
    } else if (!strcmp(how, "free-foreign")) {
        free(opaque(block));
    } else if (!strcmp(how, "free-one")) {
        free(opaque((void *)1));
    } else if (!strcmp(how, "resize-foreign")) {
        opaque(realloc(opaque(block), 100));
    } else if (!strcmp(how, "write-a-byte-behind")) {
        opaque(block[0])[SMALL] ^= 1;
        free(block[0]);
    } else if (!strcmp(how, "write-a-byte-before")) {
        opaque(block[0])[-1] ^= 1;
        free(block[0]);
        for (int i = 0; i < BLOCKS; i++)
            opaque(malloc(SMALL));
    } else if (!strcmp(how, "read-no-bytes")) {
        printf("%d\n", *(volatile char *)opaque(malloc(0)));
    } else if (!strcmp(how, "write-a-freed-large-one")) {
        char *large = opaque(malloc(LARGE));
        free(large);
        large[LARGE / 2] = 1;
    } else if (!strcmp(how, "write-a-mib-behind")) {
        opaque(block[0])[1 << 20] = 1;
    } else if (!strcmp(how, "write-a-mib-before")) {
        opaque(block[0])[-(1 << 20)] = 1;
    } else if (!strcmp(how, "write-after-free")) {
        for (int i = 1; i < BLOCKS; i++)
            memset(block[i], 0x41, sizeof(void *));
        for (int i = 0; i < 4 * BLOCKS; i++)
            opaque(malloc(SMALL));
    } else if (!strcmp(how, "resize-after-free")) {
        opaque(realloc(block[7], 2 * SMALL));
    } else if (!strcmp(how, "write-behind")) {
        opaque(malloc(LARGE))[(LARGE + PAGE - 1) / PAGE * PAGE] = 1;
    } else if (!strcmp(how, "write-before")) {
        opaque(malloc(LARGE))[-1] = 1;
    } else if (!strcmp(how, "order")) {
        /* How many of many blocks lie right behind the one before. */
        int behind = 0;
        char *last = opaque(malloc(320));
        for (int i = 0; i < 400; i++) {
            char *next = opaque(malloc(320));
            behind += next > last && next < last + 2 * 320;
            last = next;
        }
        printf("%d\n", behind);
    }
    puts("survived");
    return 0;
}
