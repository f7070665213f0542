/* Signal handlers that allocate and touch evicted memory, and handlers that leave by a jump. */
#include "case.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

static uint64_t *memory;
static volatile sig_atomic_t handled;
static sigjmp_buf back;

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void touch_and_allocate(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    CHECK(intact(memory));
    char *block = malloc(100000);
    CHECK(block);
    memset(block, 1, 100000);
    free(block);
    handled++;
}

static void handler_faults(void)
{
    handle(SIGUSR1, touch_and_allocate, 0);
    memory = evicted();
    raise(SIGUSR1);
    CHECK(handled == 1);
}

static void handler_faults_on_an_alternate_stack(void)
{
    /* The stack itself is memory that may be evicted, and is. */
    stack_t stack = {.ss_sp = filled(), .ss_size = LEN};
    CHECK(sigaltstack(&stack, NULL) == 0);
    handle(SIGUSR1, touch_and_allocate, SA_ONSTACK);
    memory = filled();
    wait_until_evicted(stack.ss_sp);
    wait_until_evicted(memory);
    raise(SIGUSR1);
    CHECK(handled == 1);
}

/* A write barrier, as garbage collectors have it. */
static void open_the_page(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    char *page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1));
    CHECK(info->si_code == SEGV_ACCERR && page >= (char *)memory && page < (char *)memory + LEN);
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
    handled++;
}

static void segv_handler_is_a_write_barrier(void)
{
    handle(SIGSEGV, open_the_page, 0);
    memory = evicted();
    CHECK(mprotect(memory, LEN, PROT_READ) == 0);
    for (size_t i = 0; i < WORDS; i += WORDS / 64) {
        CHECK(memory[i] == word(i));
        memory[i] = 1;
        CHECK(memory[i] == 1);
        memory[i] = word(i);
    }
    CHECK(handled == 64 && intact(memory));
}

static void jump(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    siglongjmp(back, 1);
}

static void handlers_leave_by_a_jump(void)
{
    handle(SIGSEGV, jump, 0);
    handle(SIGBUS, jump, 0);
    handle(SIGALRM, jump, 0);
    memory = evicted();
    CHECK(mprotect(memory, LEN, PROT_NONE) == 0);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile uint64_t *)memory = 1;
        CHECK(0);
    }
    CHECK(mprotect(memory, LEN, PROT_READ | PROT_WRITE) == 0 && intact(memory));
    /* A file that ends before its mapping does. */
    FILE *file = tmpfile();
    CHECK(file);
    volatile char *end = mmap(0, PAGE, PROT_READ, MAP_SHARED, fileno(file), 0);
    if (sigsetjmp(back, 1) == 0) {
        (void)*end;
        CHECK(0);
    }
    /* Out of the middle of faults. */
    for (volatile int round = 0; round < 20; round++) {
        wait_until_evicted(memory);
        if (sigsetjmp(back, 1) == 0) {
            ualarm(300, 0);
            for (;;)
                CHECK(intact(memory));
        }
    }
    CHECK(intact(memory));
}

static void *touch_for_ever(void *p)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;)
        CHECK(intact(p));
}

static void threads_are_cancelled_in_faults(void)
{
    memory = evicted();
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, touch_for_ever, memory) == 0);
        usleep(200);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
        wait_until_evicted(memory);
    }
    CHECK(intact(memory));
}

static void suspended_and_resumed(void)
{
    memory = filled();
    pid_t parent = getpid();
    for (int round = 0; round < 5; round++) {
        wait_until_evicted(memory);
        pid_t child = fork();
        if (child == 0) {
            kill(parent, SIGSTOP);
            usleep(100000);
            kill(parent, SIGCONT);
            _exit(!intact(memory));
        }
        CHECK(intact(memory) && child_is_well(child));
    }
}

enum { ON_STACK = 256 << 10 };

static int stack_pipe[2];
static volatile sig_atomic_t stack_handled;

static void handle_on_a_stack_that_is_away(int signal)
{
    /* The frame below is the kernel's; what it saved is looked at when the interrupted call goes on. */
    volatile char local[PAGE];
    memset((char *)local, signal, sizeof local);
    stack_handled += local[PAGE - 1] == SIGUSR1;
}

static uint64_t sum_of(const char *at, size_t len)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < len; i++)
        sum = sum * 31 + (unsigned char)at[i];
    return sum;
}

/* Sleeps in a call whose buffer lies on its stack, and in one that a signal ends. */
static void *sleep_on_a_stack(void *unused)
{
    char kept[PAGE], buffer[ON_STACK];
    memset(kept, 'k', sizeof kept);
    memset(buffer, 'b', sizeof buffer);
    uint64_t sum = sum_of(kept, sizeof kept);
    size_t got = 0;
    while (got < sizeof buffer) {
        ssize_t n = read(stack_pipe[0], buffer + got, sizeof buffer - got);
        CHECK(n > 0);
        got += (size_t)n;
    }
    for (size_t i = 0; i < sizeof buffer; i++)
        CHECK(buffer[i] == (char)(i / 7));
    CHECK(sum_of(kept, sizeof kept) == sum);
    char byte;
    CHECK(read(stack_pipe[0], &byte, 1) == -1 && errno == EINTR && stack_handled > 0);
    CHECK(sum_of(kept, sizeof kept) == sum);
    for (size_t i = 0; i < sizeof buffer; i++)
        CHECK(buffer[i] == (char)(i / 7));
    return unused;
}

/* A thread on memory that the program mapped itself: its control block is there too, which libc and the kernel look at. */
static void a_stack_that_is_away(void)
{
    struct sigaction action = {.sa_handler = handle_on_a_stack_that_is_away};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && pipe(stack_pipe) == 0);
    uint64_t *p = filled();
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, p, LEN) == 0);
    CHECK(pthread_create(&thread, &attributes, sleep_on_a_stack, 0) == 0);
    wait_until_evicted(p);
    pid_t child = fork();
    if (child == 0)
        _exit(p[0] != word(0) || p[WORDS / 2] != word(WORDS / 2));
    CHECK(child_is_well(child));
    wait_until_evicted(p);
    static char sent[ON_STACK];
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (char)(i / 7);
    /* They leave last, but for the page with what the kernel looks at when the thread ends. */
    for (int tries = 0; folded && away((char *)p + LEN - 2 * PAGE, 2 * PAGE) < 1; tries++) {
        CHECK(tries < TRIES);
        usleep(1000);
    }
    for (size_t done = 0; done < sizeof sent;) {
        ssize_t n = write(stack_pipe[1], sent + done, sizeof sent - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
    for (int tries = 0, left = 1; left; tries++) {
        CHECK(tries < TRIES && ioctl(stack_pipe[0], FIONREAD, &left) == 0);
        usleep(1000);
    }
    wait_until_evicted(p);
    /* Again, as it may not have been in the call yet. */
    do {
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
        usleep(1000);
    } while (pthread_tryjoin_np(thread, 0) != 0);
    for (size_t i = 0; i < WORDS / 2; i++)
        CHECK(p[i] == word(i));
}

enum { FORKS = 300 };

static volatile sig_atomic_t forks;

static void fork_in_a_handler(int signal)
{
    (void)signal;
    int before = errno;
    pid_t child = forks % 2 ? fork() : _Fork();
    if (child == 0)
        _exit(0);
    CHECK(child_is_well(child));
    /* The next one comes when the program has gone on for a while. */
    struct itimerval next = {{0, 0}, {0, 1000}};
    if (++forks < FORKS)
        CHECK(setitimer(ITIMER_REAL, &next, NULL) == 0);
    errno = before;
}

/* The handler comes in the midst of the allocator, too, whose locks its thread has then. */
static void a_handler_forks(void)
{
    memory = evicted();
    struct sigaction action = {.sa_handler = fork_in_a_handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval first = {{0, 0}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &first, NULL) == 0);
    static char *held[256];
    uint32_t random = 1;
    while (forks < FORKS)
        for (int i = 0; i < 1000; i++) {
            random = random * 1103515245 + 12345;
            char **place = &held[random >> 8 & 255];
            free(*place);
            size_t len = (random >> 16) % 3 ? (random >> 20) % 3000 + 16 : (random >> 16) % 40 * PAGE + 100;
            CHECK((*place = malloc(len)));
            memset(*place, 1, len < 64 ? len : 64);
        }
    CHECK(intact(memory));
}

/* As libpsx changes the credentials of all threads: each thread that the kernel counts gets a signal, and is waited for. */
static int answers;

static void answer(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    __atomic_fetch_add(&answers, 1, __ATOMIC_SEQ_CST);
}

static void *wait_for_ever(void *unused)
{
    for (;;)
        pause();
    return unused;
}

enum { BY_TKILL, BY_TGKILL, BY_FUNCTION, WAYS };

static long send_to(int way, pid_t thread, int number)
{
    return way == BY_TKILL ? syscall(SYS_tkill, thread, number)
        : way == BY_TGKILL ? syscall(SYS_tgkill, getpid(), thread, number)
                           : tgkill(getpid(), thread, number);
}

/* How many threads but this one there were that took the signal. */
static int send_to_all(int way, int number)
{
    int sent = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        pid_t thread = atoi(task->d_name);
        if (thread == 0 || thread == gettid())
            continue;
        if (send_to(way, thread, number) == 0)
            sent++;
        else
            CHECK(errno == ESRCH);
    }
    closedir(tasks);
    return sent;
}

static void a_signal_to_each_thread(void)
{
    handle(SIGUSR1, answer, SA_RESTART);
    memory = evicted();
    for (int way = 0; way < WAYS; way++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
            CHECK(intact(memory));
            fill(memory);
            wait_until_evicted(memory);
            /* Who only asks whether they are there, or sends one to its own, is folded on. */
            CHECK(send_to_all(way, 0) >= 1 && send_to(way, gettid(), SIGUSR1) == 0 && answers == 1);
            CHECK(!folded || away(memory, LEN) > 0);
            int sent = send_to_all(way, SIGUSR1);
            CHECK(sent == 1);
            while (__atomic_load_n(&answers, __ATOMIC_SEQ_CST) != 1 + sent)
                sched_yield();
            CHECK(away(memory, LEN) == 0 && threads() == 2 && intact(memory));
            _exit(0);
        }
        CHECK(child_is_well(child) && intact(memory));
    }
}

CASES({"handler_faults", handler_faults}, {"a_signal_to_each_thread", a_signal_to_each_thread},
      {"a_handler_forks", a_handler_forks},
      {"handler_faults_on_an_alternate_stack", handler_faults_on_an_alternate_stack},
      {"segv_handler_is_a_write_barrier", segv_handler_is_a_write_barrier},
      {"handlers_leave_by_a_jump", handlers_leave_by_a_jump},
      {"threads_are_cancelled_in_faults", threads_are_cancelled_in_faults},
      {"suspended_and_resumed", suspended_and_resumed},
      {"a_stack_that_is_away", a_stack_that_is_away})
