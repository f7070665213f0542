/* What the kernel writes when a thread ends, and can wait for nobody. */
#include "case.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

enum { PATIENCE = 60 };

static uint64_t *memory;
static pthread_mutex_t *mutex;
static volatile int ready;

static void make_robust(pthread_mutex_t *made, int shared)
{
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0);
    CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    CHECK(pthread_mutexattr_setpshared(&attributes, shared) == 0);
    CHECK(pthread_mutex_init(made, &attributes) == 0);
}

/* In the midst of memory that goes away. */
static void make_mutex(void)
{
    memory = filled();
    mutex = (pthread_mutex_t *)(memory + WORDS / 2);
    make_robust(mutex, PTHREAD_PROCESS_PRIVATE);
}

static int owner_is_told_dead(pthread_mutex_t *asked)
{
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += PATIENCE;
    return pthread_mutex_timedlock(asked, &until) == EOWNERDEAD;
}

static void *lock_and_end(void *unused)
{
    CHECK(pthread_mutex_lock(mutex) == 0);
    wait_until_evicted(memory);
    return unused;
}

static void a_mutex_of_a_thread_that_ends(void)
{
    make_mutex();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, lock_and_end, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(owner_is_told_dead(mutex));
}

/* Its list begins with one that only this process has; the other one a second process waits for. */
static void mutexes_of_a_process_that_is_killed(void)
{
    pthread_mutex_t *shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    make_robust(shared, PTHREAD_PROCESS_SHARED);
    pid_t child = fork();
    if (child == 0) {
        make_mutex();
        CHECK(pthread_mutex_lock(shared) == 0 && pthread_mutex_lock(mutex) == 0);
        wait_until_evicted(memory);
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(owner_is_told_dead(shared));
}

static void a_mutex_of_a_process_that_executes(void)
{
    make_mutex();
    CHECK(pthread_mutex_lock(mutex) == 0);
    wait_until_evicted(memory);
    execl("/bin/true", "true", (char *)NULL);
    CHECK(!"executed");
}

static int wait_and_exit(void *unused)
{
    (void)unused;
    while (!ready) {
        struct timespec moment = {0, 1000000};
        syscall(SYS_nanosleep, &moment, NULL);
    }
    return (int)syscall(SYS_exit, 0);
}

static void a_number_that_is_cleared(void)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    memory = filled();
    volatile int *number = (int *)(memory + WORDS / 2);
    *number = 1;
    int flags = CLONE_VM | CLONE_THREAD | CLONE_SIGHAND | CLONE_FS | CLONE_FILES | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    CHECK(clone(wait_and_exit, stack + sizeof stack, flags, NULL, NULL, NULL, (void *)number) > 0);
    wait_until_evicted(memory);
    ready = 1;
    for (int tries = 0; threads() > 1 && *number != 0; tries++) {
        CHECK(tries < TRIES);
        usleep(1000);
    }
    CHECK(*number == 0);
}

CASES({"a_mutex_of_a_thread_that_ends", a_mutex_of_a_thread_that_ends},
      {"mutexes_of_a_process_that_is_killed", mutexes_of_a_process_that_is_killed},
      {"a_mutex_of_a_process_that_executes", a_mutex_of_a_process_that_executes},
      {"a_number_that_is_cleared", a_number_that_is_cleared})
