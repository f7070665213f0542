/* Functions that are looked up by a library's handle, as ctypes, Fiddle and JNA do. `by_handle WHERE [NEXT]`: WHERE is the file in which libc's functions of
 * which memfold has its own are to be, and NEXT where the library BETWEEN is to find what comes behind itself. From the same source: that library, which is
 * preloaded beside memfold's (BETWEEN), another such (LATE), one that is loaded later (PLUGIN), and a program that has a `dlsym` of its own (OWN_DLSYM). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __aarch64__
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif

#if defined(BETWEEN)

void *next_of_between(const char *name);
void *next_of_between(const char *name)
{
    void *volatile found = dlsym(RTLD_NEXT, name);
    return found;
}

/* Stands around libc's, which it gets by libc's handle. */
int setegid(gid_t group)
{
    int (*real)(gid_t) = (int (*)(gid_t))dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "setegid");
    int result = real(group);
    return result;
}

/* The same by a version, for which a look-up passes over this library. */
int setregid(gid_t real_group, gid_t effective_group)
{
    int (*real)(gid_t, gid_t) = (int (*)(gid_t, gid_t))dlvsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "setregid", FIRST_VERSION);
    int result = real(real_group, effective_group);
    return result;
}

#elif defined(LATE)

/* Tells nothing before its constructor has run. */
static void *(*real)(void *restrict, const char *restrict);

__attribute__((constructor)) static void begin(void)
{
    real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    return real(handle, name);
}

#elif defined(PLUGIN)

int sees_itself(void);
int sees_itself(void)
{
    void *volatile found = dlsym(RTLD_DEFAULT, "sees_itself");
    return found == (void *)sees_itself;
}

#else

#include "check.h"

__attribute__((weak)) void *next_of_between(const char *name);

#if defined(OWN_DLSYM)

static int calls;

void *dlsym(void *restrict handle, const char *restrict name)
{
    void *(*real)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
    calls++;
    return real(handle, name);
}

#endif

/* Before any constructor, when memfold's has not run either. */
static void *early[3];

static void look_early(void)
{
    early[0] = dlsym(RTLD_DEFAULT, "malloc");
    early[1] = dlvsym(RTLD_DEFAULT, "malloc", FIRST_VERSION);
    early[2] = dlsym(RTLD_DEFAULT, "there_is_no_such_function");
}

__attribute__((section(".preinit_array"), used)) static void (*before_constructors)(void) = look_early;

/* Whether a function lies in a file of this name. */
static int lies_in(void *function, const char *file)
{
    Dl_info found;
    if (!function || !dladdr(function, &found))
        return 0;
    const char *slash = strrchr(found.dli_fname, '/');
    return strcmp(slash ? slash + 1 : found.dli_fname, file) == 0;
}

static void functions_lie(const char *where)
{
    static const char *const names[] = {"malloc", "free", "calloc", "realloc", "posix_memalign", "malloc_usable_size", "mmap", "munmap", "mremap",
                                        "madvise", "mprotect", "mlockall", "syscall", "clone", "_Fork", "unshare", "setns", "prctl", "chroot",
                                        "sbrk", "setuid", "pthread_setspecific", "dlopen", "dlsym", "dlvsym"};
    void *libc = dlopen("libc.so.6", RTLD_NOW), *libm = dlopen("libm.so.6", RTLD_NOW), *all = dlopen(NULL, RTLD_NOW);
    CHECK(libc && libm && all);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(libc, names[i]), *versioned = dlvsym(libc, names[i], FIRST_VERSION);
        if (!lies_in(found, where)) {
            fprintf(stderr, "%s by libc's handle is not in %s\n", names[i], where);
            exit(1);
        }
        /* libm needs libc, and is looked through with it. */
        CHECK(dlsym(libm, names[i]) == found && dlsym(RTLD_NEXT, names[i]) == found);
        CHECK(!versioned || lies_in(versioned, where));
#ifndef OWN_DLSYM
        CHECK(dlsym(RTLD_DEFAULT, names[i]) == found && dlsym(all, names[i]) == found);
#endif
    }
    CHECK(lies_in(dlvsym(libc, "free", FIRST_VERSION), where));
    CHECK(lies_in(dlsym(libc, "strdup"), "libc.so.6") && lies_in(dlsym(libm, "cos"), "libm.so.6"));
    CHECK(lies_in(early[0], where) && lies_in(early[1], where) && !early[2]);
}

static void blocks_are_exchanged(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    char *(*duplicate)(const char *) = (char *(*)(const char *))dlsym(libc, "strdup");
    void *(*resize)(void *, size_t) = (void *(*)(void *, size_t))dlsym(libc, "realloc");
    size_t (*usable)(void *) = (size_t (*)(void *))dlsym(libc, "malloc_usable_size");
    void (*release)(void *) = (void (*)(void *))dlvsym(libc, "free", FIRST_VERSION);
    for (size_t size = 1; size < 100000; size *= 3) {
        char *text = malloc(size);
        memset(text, 'x', size - 1);
        text[size - 1] = 0;
        char *copy = resize(duplicate(text), size * 2);
        CHECK(strcmp(copy, text) == 0 && usable(copy) >= size * 2);
        release(copy);
        release(text);
    }
}

#ifndef OWN_DLSYM

/* What `dlerror` says is printed, to be the same without memfold. */
static void errors_are_told(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(!dlerror());
    CHECK(!dlsym(libc, "there_is_no_such_function"));
    printf("%s\n", dlerror());
    CHECK(!dlerror());
    CHECK(!dlvsym(libc, "free", "GLIBC_0.0"));
    printf("%s\n", dlerror());
    CHECK(!dlsym(RTLD_NEXT, "there_is_no_such_function"));
    printf("%s\n", dlerror());
    /* A look-up that succeeds is not in error, whatever the one before was. */
    CHECK(!dlsym(libc, "there_is_no_such_function") && dlsym(libc, "free"));
    printf("%s\n", dlerror() ? "an error is kept" : "no error is kept");
}

/* A libc of another namespace has blocks of its own. */
static void another_libc_is_left_alone(void)
{
    void *other = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    CHECK(other);
    char *(*duplicate)(const char *) = (char *(*)(const char *))dlsym(other, "strdup");
    void (*release)(void *) = (void (*)(void *))dlsym(other, "free");
    CHECK(duplicate && lies_in(release, "libc.so.6"));
    release(duplicate("text"));
}

#endif

int main(int argc, char **argv)
{
    CHECK(argc > 1);
#if defined(OWN_DLSYM)
    calls = 0;
    functions_lie(argv[1]);
    blocks_are_exchanged();
    CHECK(calls > 50);
#else
    if (argc > 2) {
        CHECK(next_of_between && lies_in(next_of_between("malloc"), argv[2]) && lies_in(next_of_between("prctl"), argv[2]));
        CHECK(setegid(getegid()) == 0 && setregid(-1, -1) == 0);
    }
    functions_lie(argv[1]);
    blocks_are_exchanged();
    errors_are_told();
    another_libc_is_left_alone();
    void *plugin = dlopen("./libplugin.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin);
    int (*sees_itself)(void) = (int (*)(void))dlsym(plugin, "sees_itself");
    CHECK(sees_itself && sees_itself() && !dlsym(RTLD_DEFAULT, "sees_itself"));
#endif
    printf("as by name\n");
}

#endif
