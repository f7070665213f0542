/* Signal handlers that allocate and touch evicted memory, and handlers that leave by a jump. */
#include "case.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

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

CASES({"handler_faults", handler_faults},
      {"handler_faults_on_an_alternate_stack", handler_faults_on_an_alternate_stack},
      {"segv_handler_is_a_write_barrier", segv_handler_is_a_write_barrier},
      {"handlers_leave_by_a_jump", handlers_leave_by_a_jump},
      {"threads_are_cancelled_in_faults", threads_are_cancelled_in_faults},
      {"suspended_and_resumed", suspended_and_resumed})
