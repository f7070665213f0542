/* What libc or the kernel touches in a forked child before anybody serves it, while it is away. */
#include "case.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

enum { BLOCKS = 400, STREAM = 472, VALUES = 64 };

static uint64_t *memory;
static unsigned char *blocks[BLOCKS];

/* Waits until the page of this address is away, too. */
static void wait_until_away(const void *at)
{
    wait_until_evicted(memory);
    for (int tries = 0; folded && away((void *)((uintptr_t)at & -(uintptr_t)PAGE), PAGE) == 0; tries++) {
        CHECK(tries < TRIES);
        usleep(1000);
    }
}

static int blocks_are(size_t count, size_t len)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; blocks[i] && j < len; j++)
            if (blocks[i][j] != (unsigned char)(i + 1))
                return 0;
    return 1;
}

static void *wait_for_ever(void *unused)
{
    for (;;)
        pause();
    return unused;
}

/* In a program with threads libc looks at every stream in the child, at its beginning and at its end. */
static void a_stream_on_two_pages(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
    memory = filled();
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(STREAM)));
        memset(blocks[i], (int)(i + 1), STREAM);
    }
    for (size_t i = 0; i < BLOCKS; i++)
        if (((uintptr_t)blocks[i] & (PAGE - 1)) > PAGE - 104) {
            free(blocks[i]);
            blocks[i] = NULL;
            break;
        }
    FILE *stream = fopen("/dev/null", "w");
    CHECK(stream && setvbuf(stream, NULL, _IONBF, 0) == 0);
    /* Pages with nothing but such blocks. */
    wait_until_away(blocks[BLOCKS / 4 * 3]);
    usleep(folded ? 300000 : 0);
    pid_t child = fork();
    if (child == 0)
        _exit(!(blocks_are(BLOCKS, STREAM) && fputs("x", stream) > 0 && intact(memory)));
    CHECK(child_is_well(child) && blocks_are(BLOCKS, STREAM));
}

static FILE *in_use;

static void *read_for_ever(void *unused)
{
    getc(in_use);
    return unused;
}

/* It has the stream's lock, which the child gets free. */
static void a_stream_that_another_thread_has(void)
{
    int ends[2];
    memory = filled();
    for (size_t i = 0; i < BLOCKS; i++)
        CHECK((blocks[i] = malloc(STREAM)));
    free(blocks[BLOCKS / 2]);
    blocks[BLOCKS / 2] = NULL;
    CHECK(pipe(ends) == 0 && (in_use = fdopen(ends[0], "r")));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, read_for_ever, NULL) == 0);
    while (ftrylockfile(in_use) == 0) {
        funlockfile(in_use);
        usleep(1000);
    }
    wait_until_away(blocks[BLOCKS / 4 * 3]);
    usleep(folded ? 300000 : 0);
    pid_t child = fork();
    if (child == 0)
        _exit(ftrylockfile(in_use) != 0);
    CHECK(child_is_well(child));
}

static pthread_key_t key;
static volatile int ready;

static void *keep_a_value(void *unused)
{
    for (size_t i = 0; i < VALUES; i++) {
        if (i == VALUES / 2)
            CHECK(pthread_setspecific(key, (void *)0x1234567) == 0);
        CHECK((blocks[i] = malloc(512)));
        memset(blocks[i], (int)(i + 1), 512);
    }
    ready = 1;
    return wait_for_ever(unused);
}

static void *find_no_value(void *unused)
{
    (void)unused;
    return pthread_getspecific(key);
}

/* Of other threads it overwrites what they keep of the later keys. */
static void values_of_another_thread(void)
{
    memory = filled();
    for (int i = 0; i < 60; i++)
        CHECK(pthread_key_create(&key, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, keep_a_value, NULL) == 0);
    while (!ready)
        usleep(1000);
    wait_until_away(blocks[VALUES / 2 + 1]);
    pid_t child = fork();
    if (child == 0) {
        /* On the other's stack, which is free here. */
        void *value = &value;
        CHECK(pthread_create(&thread, NULL, find_no_value, NULL) == 0 && pthread_join(thread, &value) == 0);
        _exit(!blocks_are(VALUES, 512) || value != NULL);
    }
    CHECK(child_is_well(child) && blocks_are(VALUES, 512));
}

static int *number;

static int is_told(void *unused)
{
    (void)unused;
    for (size_t i = 0; i < WORDS; i++)
        if (memory[i] != word(i) && (int *)(memory + i) != number)
            _exit(1);
    _exit(*number != getpid());
}

/* The kernel writes the child's number where it was asked to. */
static void a_number_for_the_child(void)
{
    static char stack[1 << 18] __attribute__((aligned(16)));
    memory = evicted();
    number = (int *)(memory + WORDS / 2);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID, 0, 0, number, 0);
    if (child == 0)
        is_told(NULL);
    CHECK(child_is_well(child));
    number = (int *)(memory + WORDS / 4);
    wait_until_evicted(memory);
    child = clone(is_told, stack + sizeof stack, SIGCHLD | CLONE_CHILD_SETTID, NULL, NULL, NULL, number);
    CHECK(child_is_well(child) && intact(memory));
}

static __thread unsigned char own[256];
static unsigned char *of_thread;

static void *keep_its_own(void *unused)
{
    memset(own, 0x5a, sizeof own);
    of_thread = own;
    ready = 1;
    return wait_for_ever(unused);
}

static int is_kept(void)
{
    for (size_t i = 0; i < sizeof own; i++)
        if (of_thread[i] != 0x5a)
            return 0;
    return 1;
}

/* It takes threads that it does not have off a list, whose links lie in the threads' stacks. */
static void a_stack_of_another_thread(void)
{
    memory = filled();
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, memory, LEN) == 0);
    CHECK(pthread_create(&thread, &attributes, keep_its_own, NULL) == 0);
    while (!ready)
        usleep(1000);
    wait_until_evicted(memory);
    usleep(folded ? 300000 : 0);
    pid_t child = fork();
    if (child == 0)
        _exit(!(is_kept() && memory[0] == word(0)));
    CHECK(child_is_well(child) && is_kept());
}

CASES({"a_stream_on_two_pages", a_stream_on_two_pages}, {"values_of_another_thread", values_of_another_thread},
      {"a_stream_that_another_thread_has", a_stream_that_another_thread_has},
      {"a_number_for_the_child", a_number_for_the_child},
      {"a_stack_of_another_thread", a_stack_of_another_thread})
