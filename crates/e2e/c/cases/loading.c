/* A program that loads a library while it runs, to be bound to its own dependencies first (RTLD_DEEPBIND), as PHP does with its
 * extensions. From the same source: the library (PLUGIN), and one that the library loads by its bare name (INNER), which only its
 * own search path finds. */
#include "case.h"
#include <dlfcn.h>

#if defined(INNER)

int answer(void);
int answer(void)
{
    return 42;
}

#elif defined(WAITING)

#include <pthread.h>

/* Calls that come by this library, made while the loader loads this one, whose constructor waits for them. */
static void *make_calls(void *unused)
{
    CHECK(pthread_atfork(NULL, NULL, NULL) == 0 && setgid(getgid()) == 0);
    pid_t child = _Fork();
    if (child == 0)
        _exit(0);
    CHECK(child_is_well(child));
    return unused;
}

__attribute__((constructor)) static void wait_for_a_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, make_calls, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

#elif defined(PLUGIN)

char *exchange(char *given);
int ask_inner(void);
int fork_and_look(int (*look)(void));

/* Frees what the program allocated; the program frees what it gets. */
char *exchange(char *given)
{
    char *copy = realloc(strdup(given), 1000000);
    free(given);
    return copy;
}

int ask_inner(void)
{
    void *inner = dlopen("libcase-inner.so", RTLD_NOW | RTLD_DEEPBIND);
    int (*answer)(void) = inner ? (int (*)(void))dlsym(inner, "answer") : NULL;
    return answer ? answer() : -1;
}

int fork_and_look(int (*look)(void))
{
    pid_t child = fork();
    if (child == 0)
        _exit(look() ? 0 : 1);
    return child_is_well(child);
}

#else

static const uint64_t *memory;

static int look(void)
{
    return intact(memory);
}

static void a_library_that_is_bound_deeply(void)
{
    void *plugin = dlopen("./libcase-plugin.so", RTLD_NOW | RTLD_DEEPBIND);
    CHECK(plugin);
    char *(*exchange)(char *) = (char *(*)(char *))dlsym(plugin, "exchange");
    int (*ask_inner)(void) = (int (*)(void))dlsym(plugin, "ask_inner");
    int (*fork_and_look)(int (*)(void)) = (int (*)(int (*)(void)))dlsym(plugin, "fork_and_look");
    CHECK(exchange && ask_inner && fork_and_look);
    for (size_t size = 1; size < 1000000; size = size * 3 + 5) {
        char *given = malloc(size);
        CHECK(given);
        memset(given, 'x', size - 1);
        given[size - 1] = 0;
        char *got = exchange(given);
        CHECK(got && strlen(got) == size - 1);
        free(got);
    }
    CHECK(ask_inner() == 42);
    CHECK(!dlopen("libcase-inner-that-is-not-there.so", RTLD_NOW | RTLD_DEEPBIND) && dlerror());
    memory = evicted();
    CHECK(fork_and_look(look) && look());
}

static void a_library_that_waits_for_a_thread(void)
{
    uint64_t *p = evicted();
    CHECK(dlopen("./libcase-waiting.so", RTLD_NOW) && intact(p));
}

CASES({"a_library_that_is_bound_deeply", a_library_that_is_bound_deeply},
      {"a_library_that_waits_for_a_thread", a_library_that_waits_for_a_thread})

#endif
