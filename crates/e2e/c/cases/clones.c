/* Every kind of process and thread that `clone` makes, while memory is evicted, and how processes end whose threads end past
 * libc. Each row of the table in docs/compatibility.md is a case here. */
#include "case.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define STACK (256 << 10)

static uint64_t *memory;

/* What a child does with its descriptors that would harm a pager which had its own among them. */
static void give_up_descriptors(void)
{
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    CHECK(dup2(1, 700) == 700 && close(700) == 0);
}

/* The child of a clone that copies memory: finds every byte, also once they were evicted there. */
static int look(void *flags)
{
    if ((long)flags & CLONE_FILES)
        give_up_descriptors();
    CHECK(intact(memory));
    fill(memory);
    wait_until_evicted(memory);
    CHECK(intact(memory));
    return 0;
}

static int look_and_exit(void *flags)
{
    _exit(look(flags));
}

typedef int (*cloner)(int (*function)(void *), void *stack, int flags, void *argument, ...);

/* libc's other name of `clone`. */
int __clone(int (*function)(void *), void *stack, int flags, void *argument, ...);

enum way { BY_CLONE, BY_ITS_OTHER_NAME, BY_LIBCS_HANDLE, BY_SYSCALL, BY_CLONE3, WAYS };

static pid_t make(enum way way, long flags)
{
    if (way < BY_SYSCALL) {
        cloner by_handle = (cloner)dlsym(dlopen("libc.so.6", RTLD_NOW), "clone");
        cloner by[] = {[BY_CLONE] = clone, [BY_ITS_OTHER_NAME] = __clone, [BY_LIBCS_HANDLE] = by_handle};
        char *stack = malloc(STACK);
        CHECK(stack && by_handle);
        return by[way](look_and_exit, stack + STACK, (int)flags | SIGCHLD, (void *)flags);
    }
    struct clone_args args = {.flags = (uint64_t)flags, .exit_signal = SIGCHLD};
    long child = way == BY_SYSCALL ? syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0)
                                   : syscall(SYS_clone3, &args, sizeof args);
    if (child == 0)
        look_and_exit((void *)flags);
    return (pid_t)child;
}

/* Makes one of each way, and looks at the parent's memory after each. */
static void copies(long flags)
{
    memory = evicted();
    for (enum way way = BY_CLONE; way < WAYS; way++) {
        CHECK(child_is_well(make(way, flags)));
        CHECK(intact(memory));
        /* What the child shared could not be evicted before it is written. */
        fill(memory);
        wait_until_evicted(memory);
    }
    CHECK(intact(memory));
}

static void copies_of_all(void)
{
    copies(0);
}

static void copies_that_share_descriptors(void)
{
    copies(CLONE_FILES);
}

static void copies_that_share_directories(void)
{
    copies(CLONE_FS);
    copies(CLONE_FS | CLONE_FILES);
}

static void copies_that_are_waited_for(void)
{
    copies(CLONE_VFORK);
    copies(CLONE_VFORK | CLONE_FILES | CLONE_FS);
}

/* By number, on a stack of its own: there libc's `syscall` returns to the address on top, where the machine has return addresses on the stack. */
static void look_on_another_stack(void)
{
    CHECK(intact(memory));
    _exit(0);
}

static void copies_on_another_stack(void)
{
    for (enum way way = BY_SYSCALL; way < WAYS; way++) {
        pid_t parent = fork();
        if (parent == 0) {
            memory = evicted();
            char *stack = malloc(STACK);
            CHECK(stack);
            void **top = (void **)(stack + STACK) - 2;
            *top = (void *)look_on_another_stack;
            size_t len = (size_t)((char *)top - stack);
            struct clone_args args = {.exit_signal = SIGCHLD, .stack = (uint64_t)(uintptr_t)stack, .stack_size = len};
            long child = way == BY_SYSCALL ? syscall(SYS_clone, SIGCHLD, top, 0, 0, 0) : syscall(SYS_clone3, &args, sizeof args);
            CHECK(child_is_well((pid_t)child));
            CHECK(intact(memory));
            _exit(0);
        }
        CHECK(child_is_well(parent));
    }
}

/* By the bare instruction the library sees no fork: the child must not look, but it must not harm its parent either. */
static void a_bare_copy_that_shares_descriptors(void)
{
    memory = evicted();
    for (int round = 0; round < 5; round++) {
        long child = bare(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            bare(SYS_close_range, 3, ~0u, 0, 0, 0);
            bare(SYS_exit_group, 0, 0, 0, 0, 0);
        }
        CHECK(child_is_well((pid_t)child));
        CHECK(intact(memory));
        fill(memory);
        wait_until_evicted(memory);
    }
    CHECK(intact(memory));
}

/* A program that shares its table gives it up, or takes one of its own. */
static void descriptors_are_unshared(void)
{
    memory = evicted();
    CHECK(unshare(CLONE_FILES) == 0 && intact(memory));
    wait_until_evicted(memory);
    CHECK(unshare(CLONE_FS | CLONE_SYSVSEM) == 0 && intact(memory));
    wait_until_evicted(memory);
    CHECK(syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_UNSHARE) == 0 && intact(memory));
    wait_until_evicted(memory);
    pid_t child = make(BY_CLONE, CLONE_FILES);
    CHECK(child_is_well(child) && intact(memory));
}

/* A thread with a table of its own, made past libc: it changes mappings, and closes what it finds. */
static int done;
static void *target;

static int change_in_a_thread(void *flags)
{
    if (!((long)flags & CLONE_FILES))
        give_up_descriptors();
    CHECK(intact(memory));
    wait_until_evicted(memory);
    uint64_t *other = mremap(memory, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    CHECK(other != MAP_FAILED && intact(other));
    memory = other;
    wait_until_evicted(memory);
    CHECK(munmap(memory, LEN / 2) == 0);
    CHECK(mmap(memory, LEN / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
    for (size_t i = 0; i < WORDS / 2; i++)
        CHECK(memory[i] == 0);
    fill(memory);
    __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void threads_of(long flags)
{
    memory = evicted();
    target = mmap(0, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(target != MAP_FAILED);
    char *stack = malloc(STACK);
    CHECK(stack);
    done = 0;
    flags |= CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
    /* It has this thread's control block, so this one does nothing meanwhile. */
    CHECK(clone(change_in_a_thread, stack + STACK, (int)flags, (void *)flags) > 0);
    while (!__atomic_load_n(&done, __ATOMIC_SEQ_CST))
        usleep(1000);
    CHECK(intact(memory));
    wait_until_evicted(memory);
    CHECK(intact(memory));
}

static void threads_past_libc(void)
{
    threads_of(CLONE_FILES | CLONE_FS | CLONE_SYSVSEM);
}

static void threads_with_descriptors_of_their_own(void)
{
    threads_of(CLONE_FS);
    threads_of(0);
}

static int look_in_shared_memory(void *flags)
{
    if (!((long)flags & CLONE_FILES))
        give_up_descriptors();
    CHECK(intact(memory));
    /* Enough to start the pager of a program that had little until now; it must not start in this process. */
    char *big = malloc(64 << 20);
    CHECK(big);
    memset(big, 1, 64 << 20);
    free(big);
    _exit(0);
}

static void shares(long flags)
{
    char *stack = malloc(STACK);
    CHECK(stack);
    pid_t child = clone(look_in_shared_memory, stack + STACK, (int)flags | CLONE_VM | SIGCHLD, (void *)flags);
    CHECK(child_is_well(child) && intact(memory));
}

static void shared_memory_that_is_waited_for(void)
{
    memory = filled();
    static const long kinds[] = {0, CLONE_FILES, CLONE_FS | CLONE_SIGHAND};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        wait_until_evicted(memory);
        shares(kinds[i] | CLONE_VFORK);
    }
    wait_until_evicted(memory);
    CHECK(intact(memory));
}

static void shared_memory(void)
{
    memory = evicted();
    shares(0);
    shares(CLONE_FILES);
    shares(CLONE_FS | CLONE_SIGHAND | CLONE_FILES);
}

static int outlive(void *parent)
{
    /* Until the parent is gone, and with it whoever could have brought a page back. */
    while (getppid() == *(pid_t *)parent)
        usleep(1000);
    CHECK(intact(memory));
    _exit(0);
}

static void shared_memory_that_outlives(void)
{
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        static pid_t me;
        memory = evicted();
        me = getpid();
        char *stack = malloc(STACK);
        CHECK(stack && clone(outlive, stack + STACK, CLONE_VM | SIGCHLD, &me) > 0);
        bare(SYS_exit_group, 0, 0, 0, 0, 0);
    }
    CHECK(child_is_well(parent));
    int status;
    pid_t orphan = wait(&status);
    CHECK(orphan > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A child of vfork whose parent is killed, with the threads that would bring pages back: it may find its bytes, or wait for ever, but
 * never read zeros. */
struct orphan {
    pid_t pid;
    int found; /* 1: the bytes, 2: something else. */
};

static int touch_when_orphaned(void *shared)
{
    struct orphan *orphan = shared;
    pid_t parent = getppid();
    orphan->pid = getpid();
    kill(parent, SIGKILL);
    while (getppid() == parent)
        usleep(1000);
    __atomic_store_n(&orphan->found, memory[WORDS / 2] == word(WORDS / 2) ? 1 : 2, __ATOMIC_SEQ_CST);
    _exit(0);
}

static int waits_for_a_page(pid_t pid)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/wchan", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 0;
    CHECK(read(fd, text, sizeof text - 1) >= 0 && close(fd) == 0);
    return strcmp(text, "handle_userfault") == 0;
}

static void nobody_is_left_to_serve(void)
{
    struct orphan *orphan = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(orphan != MAP_FAILED && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        memory = evicted();
        char *stack = malloc(STACK);
        CHECK(stack);
        clone(touch_when_orphaned, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, orphan);
        _exit(1);
    }
    int status = 0;
    CHECK(waitpid(parent, &status, 0) == parent && WIFSIGNALED(status));
    int found;
    while (!(found = __atomic_load_n(&orphan->found, __ATOMIC_SEQ_CST)) && !waits_for_a_page(orphan->pid))
        usleep(1000);
    CHECK(found != 2);
    kill(orphan->pid, SIGKILL);
    CHECK(waitpid(orphan->pid, &status, 0) == orphan->pid);
}

/* Which descriptors are open, as text. */
static void list_descriptors(char *text, size_t len)
{
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    text[0] = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir)) {
            strncat(text, entry->d_name, len - strlen(text) - 2);
            strcat(text, " ");
        }
    closedir(dir);
}

static void no_descriptor_is_seen(void)
{
    char text[256];
    /* What the test inherited. */
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    memory = evicted();
    list_descriptors(text, sizeof text);
    CHECK(strcmp(text, "0 1 2 ") == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(intact(memory));
        list_descriptors(text, sizeof text);
        CHECK(strcmp(text, "0 1 2 ") == 0);
        _exit(0);
    }
    CHECK(child_is_well(child));
    FILE *seen = popen("ls /proc/self/fd | wc -w", "r");
    CHECK(seen && fgets(text, sizeof text, seen) && atoi(text) == 4 && pclose(seen) == 0);
    CHECK(open("/dev/null", O_RDONLY) == 3);
}

/* How processes end. Each child's memory is evicted, so it has the pager's threads. */

static int return_seven(void *unused)
{
    (void)unused;
    CHECK(intact(memory));
    return 7;
}

static int return_seven_later(void *unused)
{
    wait_until_evicted(memory);
    return return_seven(unused);
}

static int status_of(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void ends_by_returning_from_clone(void)
{
    memory = evicted();
    char *stack = malloc(STACK);
    CHECK(stack);
    for (int round = 0; round < 5; round++) {
        CHECK(status_of(clone(return_seven, stack + STACK, SIGCHLD, NULL)) == 7 << 8);
        fill(memory);
        wait_until_evicted(memory);
        CHECK(status_of(clone(return_seven_later, stack + STACK, SIGCHLD | CLONE_FILES, NULL)) == 7 << 8);
        fill(memory);
        wait_until_evicted(memory);
    }
    CHECK(intact(memory));
}

static void ends_by_the_exit_of_a_thread(void)
{
    memory = evicted();
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0)
            bare(SYS_exit, 9, 0, 0, 0, 0);
        CHECK(status_of(child) == 9 << 8);
        child = fork();
        if (child == 0)
            syscall(SYS_exit, 10);
        CHECK(status_of(child) == 10 << 8);
        child = fork();
        if (child == 0) {
            CHECK(intact(memory));
            fill(memory);
            wait_until_evicted(memory);
            bare(SYS_exit, 11, 0, 0, 0, 0);
        }
        CHECK(status_of(child) == 11 << 8);
    }
}

static int end_after_main(void *status)
{
    CHECK(intact(memory));
    /* Until the main thread has ended: its memory map is empty then. And end at once, before a pager has looked. */
    char first = 0;
    while (first != '0') {
        int fd = open("/proc/self/statm", O_RDONLY);
        CHECK(fd >= 0 && read(fd, &first, 1) == 1 && close(fd) == 0);
    }
    syscall(SYS_exit, (long)status);
    return 0;
}

static void ends_by_the_exit_of_the_last_thread(void)
{
    memory = evicted();
    char *stack = malloc(STACK);
    CHECK(stack);
    pid_t child = fork();
    if (child == 0) {
        CHECK(clone(end_after_main, stack + STACK, CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_FILES | CLONE_FS,
                    (void *)12L) > 0);
        bare(SYS_exit, 1, 0, 0, 0, 0);
    }
    CHECK(status_of(child) == 12 << 8);
}

static void ends_by_a_signal(void)
{
    memory = evicted();
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child == 0) {
            kill(getpid(), round % 2 ? SIGKILL : SIGTERM);
            bare(SYS_exit, 1, 0, 0, 0, 0);
        }
        int status = status_of(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == (round % 2 ? SIGKILL : SIGTERM));
    }
}

CASES({"copies_of_all", copies_of_all}, {"copies_that_share_descriptors", copies_that_share_descriptors},
      {"copies_that_share_directories", copies_that_share_directories},
      {"copies_that_are_waited_for", copies_that_are_waited_for},
      {"copies_on_another_stack", copies_on_another_stack},
      {"a_bare_copy_that_shares_descriptors", a_bare_copy_that_shares_descriptors},
      {"descriptors_are_unshared", descriptors_are_unshared}, {"threads_past_libc", threads_past_libc},
      {"threads_with_descriptors_of_their_own", threads_with_descriptors_of_their_own},
      {"shared_memory_that_is_waited_for", shared_memory_that_is_waited_for}, {"shared_memory", shared_memory},
      {"shared_memory_that_outlives", shared_memory_that_outlives}, {"no_descriptor_is_seen", no_descriptor_is_seen},
      {"nobody_is_left_to_serve", nobody_is_left_to_serve},
      {"ends_by_returning_from_clone", ends_by_returning_from_clone},
      {"ends_by_the_exit_of_a_thread", ends_by_the_exit_of_a_thread},
      {"ends_by_the_exit_of_the_last_thread", ends_by_the_exit_of_the_last_thread},
      {"ends_by_a_signal", ends_by_a_signal})
