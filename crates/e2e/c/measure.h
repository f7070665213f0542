/* What the programs that measure themselves share. They define _GNU_SOURCE before. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

/* Seconds. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Lines of a file, or the number behind a word in it. */
static unsigned long count(const char *path, const char *word) {
    char line[4096];
    unsigned long lines = 0, number = 0;
    FILE *file = fopen(path, "r");
    check(file != NULL, path);
    for (; fgets(line, sizeof line, file); lines++)
        if (word && strncmp(line, word, strlen(word)) == 0) number = strtoul(line + strlen(word), NULL, 10);
    fclose(file);
    return word ? number : lines;
}

#endif
