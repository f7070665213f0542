/* A program that is shown another time than it is, as by libfaketime: to it, no time passes. Its memory goes cold all the same. */
#include "case.h"
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){1, 0};
    return 0;
}

static void time_stands_still(void)
{
    uint64_t *p = evicted();
    CHECK(intact(p));
}

CASES({"time_stands_still", time_stands_still})
