/* A child that dies and leaves a core. */
#ifndef DYING_H
#define DYING_H
#include "case.h"
#include <signal.h>
#include <sys/resource.h>

/* Where a core of a child lies; null if the machine puts them elsewhere, or writes none. */
static inline const char *core_of(pid_t child, int status)
{
    static char name[64];
    if (!WIFSIGNALED(status) || !WCOREDUMP(status))
        return 0;
    snprintf(name, sizeof name, "core.%d", child);
    return access(name, R_OK) == 0 ? name : access("core", R_OK) == 0 ? "core" : 0;
}

/* Waits for a child that aborts. */
static inline const char *core_of_aborted(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return core_of(child, status);
}

/* A directory of its own to die in, with leave to leave a core. Whether cores go there. */
static inline int may_die_here(void)
{
    static char place[] = "dying-XXXXXX";
    char pattern[256] = "";
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    FILE *file = fopen("/proc/sys/kernel/core_pattern", "r");
    CHECK(file && fgets(pattern, sizeof pattern, file));
    fclose(file);
    pattern[strcspn(pattern, "\n")] = 0;
    CHECK(mkdtemp(place) && chdir(place) == 0);
    if (strcmp(pattern, "core") != 0 || setrlimit(RLIMIT_CORE, &unlimited) != 0) {
        printf("skipped: cores go to %s\n", pattern);
        return 0;
    }
    return 1;
}
#endif
