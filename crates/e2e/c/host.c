/* What a program may rely on, whoever manages its memory. Run plainly and folded, it prints the same; folded, with
 * everything evicted before each check. Argument: seconds to wait until memory is evicted, 0 for a plain run. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 16 << 20, WORDS = LEN / 8 };

static double wait_seconds;
static int failures;

static void check(const char *what, int good)
{
    printf("%s: %s\n", what, good ? "as it should be" : "WRONG");
    fflush(stdout);
    failures += !good;
}

static uint64_t word(size_t i)
{
    return (i / 3) * 2654435761u + 1;
}

static uint64_t *filled(void)
{
    uint64_t *p = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < WORDS; i++)
        p[i] = word(i);
    return p;
}

static void let_it_be_evicted(void)
{
    usleep((useconds_t)(wait_seconds * 1e6));
}

static int intact(const uint64_t *p)
{
    for (size_t i = 0; i < WORDS; i++)
        if (p[i] != word(i))
            return 0;
    return 1;
}

static int child_says(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void a_child_that_closes_everything_keeps_its_memory(void)
{
    uint64_t *p = filled();
    let_it_be_evicted();
    int good = 1;
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        if (child == 0) {
            if (round % 2)
                close_range(3, ~0u, 0);
            else
                for (int fd = 3; fd < 1024; fd++)
                    close(fd);
            _exit(!intact(p));
        }
        int status;
        waitpid(child, &status, 0);
        good &= child_says(status);
    }
    check("memory of a child that closes every descriptor", good && intact(p));
    munmap(p, LEN);
}

static void a_child_made_without_handlers_keeps_its_memory(void)
{
    uint64_t *p = filled();
    int good = 1;
    for (int way = 0; way < 2; way++) {
        let_it_be_evicted();
        pid_t child = way ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : _Fork();
        if (child == 0)
            _exit(!intact(p));
        int status;
        waitpid(child, &status, 0);
        good &= child_says(status);
    }
    check("memory of a child made by _Fork and by syscall(SYS_clone)", good);
    munmap(p, LEN);
}

static void *hold_streams(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_SEQ_CST))
        usleep(1000);
    return NULL;
}

static void streams_of_a_threaded_program_survive_a_fork(void)
{
    enum { STREAMS = 64 };
    static FILE *streams[STREAMS];
    /* Spread over many pages, so that some of them are nobody else's. */
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = fopen("/dev/null", "w");
        memset(malloc(1 << 15), 1, 1 << 15);
    }
    int stop = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, hold_streams, &stop);
    let_it_be_evicted();
    pid_t child = fork();
    if (child == 0) {
        int good = 1;
        for (int i = 0; i < STREAMS; i++)
            good &= fprintf(streams[i], "still open") == 10 && fclose(streams[i]) == 0;
        _exit(!good);
    }
    int status;
    waitpid(child, &status, 0);
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    check("streams in a child of a program with threads", child_says(status));
}

static void a_refused_drop_drops_what_the_kernel_dropped(void)
{
    uint64_t *p = filled();
    mlock((char *)p + LEN - PAGE, PAGE);
    let_it_be_evicted();
    errno = 0;
    int result = madvise(p, LEN, MADV_DONTNEED);
    int good = result == -1 && errno == EINVAL;
    for (size_t i = 0; i < WORDS - PAGE / 8; i += PAGE / 8)
        good &= p[i] == 0;
    good &= p[WORDS - 1] == word(WORDS - 1);
    check("MADV_DONTNEED that meets a locked page", good);
    munmap(p, LEN);
}

static void a_refused_mremap_changes_nothing(void)
{
    uint64_t *p = filled();
    let_it_be_evicted();
    size_t lengths[] = {0, SIZE_MAX, SIZE_MAX - PAGE};
    int good = 1;
    for (int i = 0; i < 3; i++) {
        errno = 0;
        good &= mremap(p, LEN, lengths[i], MREMAP_MAYMOVE) == MAP_FAILED && errno != 0;
    }
    good &= mremap(p, LEN, LEN, 64) == MAP_FAILED && errno == EINVAL;
    check("mremap with arguments that make no sense", good && intact(p));
    munmap(p, LEN);
}

/* A system call by its instruction, past libc; where that is not known, by libc. */
static void *bare_mremap(void *old, size_t old_len, size_t new_len)
{
#ifdef __x86_64__
    register long r10 __asm__("r10") = MREMAP_MAYMOVE, r8 __asm__("r8") = 0;
    long result = SYS_mremap;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(old), "S"(old_len), "d"(new_len), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return (void *)result;
#else
    return mremap(old, old_len, new_len, MREMAP_MAYMOVE);
#endif
}

static void fill(uint64_t *p, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        p[i] = word(i);
}

static int move_to(uint64_t **p, void *target)
{
    void *moved = mremap(*p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (moved != target)
        return 0;
    *p = moved;
    return 1;
}

static void *map_and_look(void *stop)
{
    enum { AREAS = 4, AREA = 3 << 20 };
    static unsigned wrong;
    while (!*(volatile int *)stop) {
        volatile char *area[AREAS];
        for (int n = 0; n < AREAS; n++) {
            area[n] = mmap(0, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t i = 0; i < AREA; i += PAGE)
                area[n][i] = (char)(n + 1);
        }
        for (int n = 0; n < AREAS; n++) {
            for (size_t i = 0; i < AREA; i += PAGE)
                wrong += area[n][i] != (char)(n + 1);
            munmap((void *)area[n], AREA);
        }
    }
    return &wrong;
}

static void memory_that_grew_past_libc_moves_as_a_whole_and_harms_nobody(void)
{
    size_t half = LEN / 2;
    uint64_t *p = mmap(0, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(p, 0, half / 8);
    let_it_be_evicted();
    /* Something behind it, so that it cannot grow where it is. While only a part is registered the kernel refuses. */
    void *behind = mmap((char *)p + half, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    void *moved;
    for (int i = 0; (moved = bare_mremap(p, half, LEN)) == (void *)-EFAULT && i < 100; i++)
        usleep(10000);
    if (moved == (void *)-EFAULT)
        moved = mremap(p, half, LEN, MREMAP_MAYMOVE);
    p = moved;
    fill(p, half / 8, WORDS);
    let_it_be_evicted();
    static volatile int stop;
    pthread_t other;
    pthread_create(&other, 0, map_and_look, (void *)&stop);
    int good = 1;
    for (int i = 0; i < 100 && good; i++) {
        void *target = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        good = move_to(&p, target);
    }
    stop = 1;
    void *wrong;
    pthread_join(other, &wrong);
    check("mremap to a fixed place of memory that grew past libc", good && intact(p));
    check("other memory meanwhile", *(unsigned *)wrong == 0);
    munmap(p, LEN);
    if (behind != MAP_FAILED)
        munmap(behind, PAGE);
}

static void descriptor_numbers_are_the_programs(void)
{
    let_it_be_evicted();
    int good = 1;
    for (int i = 0; i < 200000; i++) {
        close(0);
        good &= open("/dev/null", O_RDONLY) == 0;
        good &= dup2(0, 5) == 5 && fcntl(5, F_GETFD) >= 0 && close(5) == 0;
        good &= close(5) == -1 && errno == EBADF;
    }
    check("the lowest free descriptor", good);
}

static void a_namespace_can_be_left(void)
{
    uint64_t *p = filled();
    let_it_be_evicted();
    pid_t child = fork();
    if (child == 0) {
        int good = unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
        _exit(!(good && intact(p)));
    }
    int status;
    waitpid(child, &status, 0);
    check("unshare of a user and a mount namespace", child_says(status) && intact(p));
    munmap(p, LEN);
}

int main(int argc, char **argv)
{
    wait_seconds = argc > 1 ? atof(argv[1]) : 0;
    a_child_that_closes_everything_keeps_its_memory();
    a_child_made_without_handlers_keeps_its_memory();
    streams_of_a_threaded_program_survive_a_fork();
    a_refused_drop_drops_what_the_kernel_dropped();
    a_refused_mremap_changes_nothing();
    memory_that_grew_past_libc_moves_as_a_whole_and_harms_nobody();
    descriptor_numbers_are_the_programs();
    a_namespace_can_be_left();
    return failures != 0;
}
