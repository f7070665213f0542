/* Every way to make a process, while memory is evicted. */
#include "case.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>

extern char **environ;
static uint64_t *memory;

static void *touch_until(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_SEQ_CST))
        CHECK(intact(memory));
    return NULL;
}

static void fork_beside_threads(void)
{
    memory = evicted();
    int stop = 0;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, touch_until, &stop) == 0);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0)
            _exit(!intact(memory));
        CHECK(child_is_well(child));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK(intact(memory));
}

static void fork_in_a_fork(void)
{
    memory = evicted();
    pid_t child = fork();
    if (child == 0) {
        /* Evicted again in the child, whose child it is then. */
        CHECK(intact(memory));
        wait_until_evicted(memory);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(!intact(memory));
        _exit(!(child_is_well(grandchild) && intact(memory)));
    }
    CHECK(child_is_well(child) && intact(memory));
}

static void *open_a_stream(void *unused)
{
    FILE *stream = fopen("/dev/null", "r");
    CHECK(stream && fclose(stream) == 0);
    return unused;
}

/* The program has one thread when it forks, and its child more, which open streams. */
static void a_child_gets_threads(void)
{
    uint64_t *p = evicted();
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        alarm(60);
        CHECK(pthread_create(&thread, NULL, open_a_stream, NULL) == 0 && pthread_join(thread, NULL) == 0);
        _exit(!intact(p));
    }
    CHECK(child_is_well(child));
    CHECK(intact(p));
}

static void other_ways(void)
{
    memory = evicted();
    char *arguments[] = {"true", NULL};
    for (int round = 0; round < 5; round++) {
        wait_until_evicted(memory);
        pid_t child;
        CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && child_is_well(child));
        CHECK(system("exit 7") == 7 << 8);
        child = vfork();
        if (child == 0) {
            execvp("true", arguments);
            _exit(1);
        }
        CHECK(child_is_well(child));
        FILE *pipe = popen("echo yes", "r");
        char line[8] = "";
        CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "yes\n") == 0 && pclose(pipe) == 0);
    }
    CHECK(intact(memory));
}

static int prepared, parents, children;

static void prepare(void)
{
    CHECK(intact(memory));
    prepared++;
}

static void in_parent(void)
{
    CHECK(intact(memory));
    parents++;
}

static void in_child(void)
{
    CHECK(intact(memory));
    children++;
}

static void handlers_that_touch_memory(void)
{
    CHECK(pthread_atfork(prepare, in_parent, in_child) == 0);
    memory = filled();
    for (int round = 0; round < 5; round++) {
        /* What a handler brought back the child shares: it cannot be evicted before it is written. */
        fill(memory);
        wait_until_evicted(memory);
        pid_t child = fork();
        if (child == 0)
            _exit(!(children == 1 && intact(memory)));
        CHECK(child_is_well(child));
    }
    CHECK(prepared == 5 && parents == 5 && children == 0);
}

static void libraries_come_and_go(void)
{
    memory = evicted();
    for (int round = 0; round < 5; round++) {
        void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
        CHECK(cosine && cosine(0) == 1 && dlclose(library) == 0);
        wait_until_evicted(memory);
        CHECK(intact(memory));
    }
}

static void *use_memory_of_its_own(void *number)
{
    char *block = malloc(200000);
    memset(block, (int)(intptr_t)number, 200000);
    usleep(60000);
    for (int i = 0; i < 200000; i++)
        CHECK(block[i] == (char)(intptr_t)number);
    /* Freed by whoever joins. */
    return block;
}

static void threads_come_and_go(void)
{
    memory = evicted();
    for (int round = 0; round < 10; round++) {
        pthread_t threads[8];
        for (intptr_t i = 0; i < 8; i++)
            CHECK(pthread_create(&threads[i], NULL, use_memory_of_its_own, (void *)i) == 0);
        for (intptr_t i = 0; i < 8; i++) {
            void *block;
            CHECK(pthread_join(threads[i], &block) == 0 && *(char *)block == (char)i);
            free(block);
        }
    }
    CHECK(intact(memory));
}

/* A process that is killed at any moment takes nothing of its relatives with it. */
static void a_child_is_killed(void)
{
    memory = evicted();
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        if (child == 0)
            for (;;)
                fill(memory);
        usleep((useconds_t)(round * 97 % 20 * 500));
        int status;
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        if (round % 10 == 9) {
            CHECK(intact(memory));
            fill(memory);
            wait_until_evicted(memory);
        }
    }
    CHECK(intact(memory));
}

static void a_parent_is_killed(void)
{
    for (int round = 0; round < 10; round++) {
        int result[2];
        CHECK(pipe(result) == 0);
        pid_t parent = fork();
        if (parent == 0) {
            memory = evicted();
            pid_t orphan = fork();
            if (orphan == 0) {
                /* Some begin before their parent's end, some after it. */
                usleep((useconds_t)(round % 5 * 2000));
                char well = (char)intact(memory);
                CHECK(write(result[1], &well, 1) == 1);
                _exit(0);
            }
            usleep((useconds_t)(round * 700));
            kill(getpid(), SIGKILL);
        }
        close(result[1]);
        int status;
        CHECK(waitpid(parent, &status, 0) == parent && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        char well = 0;
        CHECK(read(result[0], &well, 1) == 1 && well);
        close(result[0]);
    }
}

CASES({"a_child_gets_threads", a_child_gets_threads}, {"a_child_is_killed", a_child_is_killed}, {"a_parent_is_killed", a_parent_is_killed},
      {"fork_beside_threads", fork_beside_threads}, {"fork_in_a_fork", fork_in_a_fork}, {"other_ways", other_ways},
      {"handlers_that_touch_memory", handlers_that_touch_memory},
      {"libraries_come_and_go", libraries_come_and_go}, {"threads_come_and_go", threads_come_and_go})
