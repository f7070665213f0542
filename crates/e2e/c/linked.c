/* A program that links the library, and says as whom it runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    size_t len = 32u << 20;
    char *block = malloc(len);
    if (!block)
        return 1;
    memset(block, 1, len);
    printf("%d %d\n", (int)geteuid(), block[len / 2]);
    free(block);
    return 0;
}
