/* Ends a program with what was not so. */
#ifndef CHECK_H
#define CHECK_H
#include <stdio.h>
#include <stdlib.h>

#define CHECK(good)                                                    \
    do {                                                               \
        if (!(good)) {                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #good);         \
            exit(1);                                                   \
        }                                                              \
    } while (0)
#endif
