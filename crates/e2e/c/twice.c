/* Frees a block twice, with others in between; says so if nobody stops it. */

#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static char *make(int length) {
    char *block = malloc(length);
    block[0] = 1;
    return block;
}

__attribute__((noinline)) char *make_name(int length) {
    char *block = make(length);
    block[1] = 1;
    return block;
}

__attribute__((noinline)) int drop_name(char *block) {
    free(block);
    return block != NULL;
}

int main(void) {
    char *block = make_name(100);
    int dropped = drop_name(block);
    for (int i = 0; i < 10; i++) {
        dropped += drop_name(make_name(100));
    }
    dropped += drop_name(block);
    printf("%d\n", dropped);
    return 0;
}
