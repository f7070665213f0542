/* Programs that confine themselves, or become another user. After a confinement nothing may be away, and the program must
 * get on with the system calls that it still has. */
#include "case.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void expect_all_back(const uint64_t *p)
{
    CHECK(away(p, LEN) == 0);
    CHECK(threads() == 1);
    CHECK(intact(p));
}

/* A filter that ends the process at any system call but those that a plain program needs to map, unmap, print and end. */
static struct sock_fprog strict(void)
{
#define LET(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    static struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        LET(read), LET(write), LET(mmap), LET(munmap), LET(mremap), LET(brk), LET(madvise), LET(mprotect),
        LET(mincore), LET(exit), LET(exit_group), LET(rt_sigreturn), LET(close), LET(clone3), LET(wait4),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    /* libc asks for random numbers at the first allocation. */
    void *volatile first = malloc(1);
    free(first);
    return (struct sock_fprog){sizeof filter / sizeof filter[0], filter};
}

/* What a confined program does: uses its memory, makes children, maps more, gives some back, allocates little and much. */
static void live_on(uint64_t *p)
{
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    CHECK(child >= 0);
    if (child == 0) _exit(intact(p) ? 7 : 8);
    int status = 0;
    CHECK(syscall(SYS_wait4, child, &status, 0, NULL) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(syscall(SYS_clone3, NULL, sizeof arguments) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_clone3, &arguments, 8) == -1 && errno == EINVAL);
    CHECK(away(p, LEN) == 0 && intact(p));
    uint64_t *q = filled();
    CHECK(intact(q) && munmap(q, LEN) == 0);
    CHECK(madvise(p, LEN / 2, MADV_DONTNEED) == 0 && p[0] == 0 && p[WORDS - 1] == word(WORDS - 1));
    for (int i = 0; i < 1000; i++) {
        char *block = malloc(1000 + 100 * i);
        CHECK(block);
        memset(block, i, 1000);
        free(block);
    }
    for (size_t size = 1 << 20; size <= 256 << 20; size *= 2) {
        char *block = malloc(size);
        CHECK(block);
        memset(block, 1, 1000);
        CHECK(block[999] == 1);
        free(block);
    }
    /* Ending by `exit` takes more than the filter lets. */
    _exit(0);
}

enum step { NONE, STARTED, CONFINED, ALLOCATED };

static void await(enum step *step, enum step awaited)
{
    while (__atomic_load_n(step, __ATOMIC_SEQ_CST) != awaited)
        ;
}

/* A thread that allocates for the first time when it is confined. It never ends, for that takes more than the filter lets. */
static void *allocate_when_confined(void *step)
{
    __atomic_store_n((enum step *)step, STARTED, __ATOMIC_SEQ_CST);
    await(step, CONFINED);
    char *block = malloc(1000);
    CHECK(block);
    memset(block, 1, 1000);
    free(block);
    __atomic_store_n((enum step *)step, ALLOCATED, __ATOMIC_SEQ_CST);
    await(step, NONE);
    return NULL;
}

static void seccomp_by_prctl(void)
{
    uint64_t *p = evicted();
    struct sock_fprog program = strict();
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    live_on(p);
}

/* As libseccomp, systemd and QEMU ask for what the kernel has: by calls that must fail. Nothing is confined by that. */
static void seccomp_is_asked_about(void)
{
    uint64_t *p = evicted();
    uint32_t action = SECCOMP_RET_KILL_PROCESS;
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno == EFAULT);
    CHECK(prctl(PR_SET_SECCOMP, 4711) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0);
    CHECK(!folded || away(p, LEN) > 0);
    CHECK(intact(p));
    wait_until_evicted(p);
    CHECK(intact(p));
}

static void expect_children_with_every_byte(const uint64_t *p)
{
    pid_t child = fork();
    if (child == 0)
        _exit(!intact(p));
    CHECK(child_is_well(child) && intact(p));
}

/* The child confines itself in the memory of its parent, which is not confined by that, and gets children that must be served. */
static void seccomp_in_a_child_of_vfork(void)
{
    static struct sock_filter let_all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    static struct sock_fprog filters[] = {{1, let_all}, {0, let_all}};
    uint64_t *p = evicted();
    for (int refused = 0; refused < 2; refused++) {
        pid_t child = vfork();
        if (child == 0) {
            int result = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (result == 0)
                result = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filters[refused]);
            _exit(result != -refused);
        }
        CHECK(child_is_well(child));
        CHECK(!folded || away(p, LEN) > 0);
        expect_children_with_every_byte(p);
        wait_until_evicted(p);
    }
    CHECK(intact(p));
}

/* A filter that the kernel refuses confines nothing. */
static void seccomp_is_refused(void)
{
    uint64_t *p = evicted();
    struct sock_fprog empty = {0, NULL};
    struct sock_filter unknown = BPF_STMT(0xffff, 0);
    struct sock_fprog wrong = {1, &unknown};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &empty) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &wrong) == -1 && errno == EINVAL);
    CHECK(intact(p));
    expect_children_with_every_byte(p);
}

static void seccomp_of_all_threads(void)
{
    uint64_t *p = evicted();
    enum step step = NONE;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_when_confined, &step) == 0);
    /* A thread that starts makes system calls that the filter does not let. */
    await(&step, STARTED);
    struct sock_fprog program = strict();
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    __atomic_store_n(&step, CONFINED, __ATOMIC_SEQ_CST);
    await(&step, ALLOCATED);
    live_on(p);
}

static void landlock(void)
{
    uint64_t *p = evicted();
    struct landlock_ruleset_attr attr = {.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE};
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    CHECK(ruleset >= 0 || errno == ENOSYS || errno == EOPNOTSUPP);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    int result = (int)syscall(SYS_landlock_restrict_self, ruleset, 0);
    CHECK(ruleset < 0 || result == 0);
    expect_all_back(p);
}

static void changes_root(int (*change)(const char *))
{
    uint64_t *p = evicted();
    CHECK(change && (change("/") == 0 || errno == EPERM));
    expect_all_back(p);
    expect_children_with_every_byte(p);
}

static void root_directory(void)
{
    changes_root(chroot);
}

static void root_directory_by_libcs_handle(void)
{
    changes_root((int (*)(const char *))dlsym(dlopen("libc.so.6", RTLD_NOW), "chroot"));
}

enum { NOBODY = 65534 };

/* Whether every thread of this process, the pager's too, is this user as a whole. */
static int all_are(unsigned user)
{
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    int all = 1;
    for (struct dirent *task; (task = readdir(tasks));) {
        char name[300], line[200];
        snprintf(name, sizeof name, "/proc/self/task/%s/status", task->d_name);
        /* One may have ended meanwhile. */
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(name, "r");
        while (status && fgets(line, sizeof line, status)) {
            unsigned ids[4];
            if (sscanf(line, "Uid: %u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) == 4)
                for (int i = 0; i < 4; i++)
                    all &= ids[i] == user;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return all;
}

/* After it has become nobody: the memory is folded by nobody's threads, and no byte of it is lost, in a child neither. */
static void lives_on_as_nobody(uint64_t *p)
{
    CHECK(all_are(NOBODY));
    CHECK(intact(p));
    for (int i = 0; i < 2; i++) {
        wait_until_evicted(p);
        CHECK(all_are(NOBODY));
        pid_t child = fork();
        if (child == 0)
            _exit(!intact(p));
        CHECK(child_is_well(child));
        CHECK(intact(p));
    }
    CHECK(setuid(0) == -1);
}

static void another_user(void)
{
    uint64_t *p = evicted();
    CHECK(setuid(getuid()) == 0);
    CHECK(!folded || away(p, LEN) > 0); /* Nothing has changed. */
    if (getuid() != 0)
        return;
    /* For a while, and back: it gives nothing up. */
    CHECK(seteuid(NOBODY) == 0 && (!folded || away(p, LEN) > 0));
    CHECK(seteuid(0) == 0 && (!folded || away(p, LEN) > 0));
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    lives_on_as_nobody(p);
}

static void another_user_by_number(void)
{
    uint64_t *p = evicted();
    if (getuid() == 0) {
        CHECK(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0);
        lives_on_as_nobody(p);
    }
    CHECK(intact(p));
}

/* As servers do that have nothing yet. */
static void another_user_at_first(void)
{
    if (getuid() == 0)
        CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    uint64_t *p = evicted();
    if (getuid() == NOBODY)
        lives_on_as_nobody(p);
    CHECK(intact(p));
}

static volatile int enough;

static void *map_and_fork(void *unused)
{
    for (int i = 0; !enough; i++) {
        uint64_t *q = filled();
        CHECK(madvise(q, LEN / 2, MADV_DONTNEED) == 0 && q[0] == 0 && q[WORDS - 1] == word(WORDS - 1));
        if (i % 4 == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(q[WORDS - 1] != word(WORDS - 1));
            CHECK(child_is_well(child));
        }
        CHECK(munmap(q, LEN) == 0);
    }
    return unused;
}

/* While other threads use, map, unmap and fork. */
static void another_user_amid_threads(void)
{
    if (getuid() != 0)
        return;
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t *p = evicted();
            pthread_t threads[3];
            for (int t = 0; t < 3; t++)
                CHECK(pthread_create(&threads[t], NULL, map_and_fork, NULL) == 0);
            usleep(20000 * i);
            CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
            CHECK(intact(p));
            enough = 1;
            for (int t = 0; t < 3; t++)
                CHECK(pthread_join(threads[t], NULL) == 0);
            lives_on_as_nobody(p);
            _exit(0);
        }
        CHECK(child_is_well(child));
    }
}

static void *becomes(void *user)
{
    long id = (long)user;
    CHECK(syscall(SYS_setresuid, id, id, id) == 0);
    return NULL;
}

/* Each thread another one, by the bare call. After a while that is more than can be followed. */
static void another_user_again_and_again(void)
{
    uint64_t *p = evicted();
    for (long i = 0; getuid() == 0 && i < 20; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, becomes, (void *)(60000 + i)) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(intact(p));
        if (i < 10)
            wait_until_evicted(p);
    }
    CHECK(intact(p));
    if (getuid() == 0)
        expect_all_back(p);
}

/* Into another mount namespace, which takes that nobody shares the root and working directory with this thread. */
static void another_namespace(void)
{
    uint64_t *p = evicted();
    int made[2], done[2];
    char byte = 'x';
    CHECK(pipe(made) == 0 && pipe(done) == 0);
    pid_t owner = fork();
    if (owner == 0) {
        byte = unshare(CLONE_NEWNS) == 0 ? 'y' : 'n';
        CHECK(write(made[1], &byte, 1) == 1);
        close(done[1]);
        _exit(read(done[0], &byte, 1) != 0);
    }
    CHECK(owner > 0 && read(made[0], &byte, 1) == 1);
    CHECK(byte == 'y' || getuid() != 0);
    if (byte == 'y') {
        char name[64];
        snprintf(name, sizeof name, "/proc/%d/ns/mnt", owner);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0 && setns(fd, CLONE_NEWNS) == 0);
        expect_all_back(p);
    }
    close(done[1]);
    CHECK(child_is_well(owner) && intact(p));
}

CASES({"another_namespace", another_namespace}, {"seccomp_by_prctl", seccomp_by_prctl},
      {"seccomp_is_asked_about", seccomp_is_asked_about},
      {"seccomp_in_a_child_of_vfork", seccomp_in_a_child_of_vfork}, {"seccomp_is_refused", seccomp_is_refused},
      {"seccomp_of_all_threads", seccomp_of_all_threads}, {"landlock", landlock},
      {"root_directory", root_directory},
      {"root_directory_by_libcs_handle", root_directory_by_libcs_handle}, {"another_user", another_user},
      {"another_user_by_number", another_user_by_number},
      {"another_user_at_first", another_user_at_first}, {"another_user_amid_threads", another_user_amid_threads},
      {"another_user_again_and_again", another_user_again_and_again})
