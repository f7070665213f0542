/* Takes and frees memory, then makes no call of the allocator any more and waits until the kernel counts at most so much of
 * it as resident: give_back BLOCK_BYTES TOTAL_MIB AT_MOST_KIB [BEFORE_SECONDS]
 * Prints what is resident besides what was before, in KiB; ends with 1 if that does not become less within 30 seconds, and then
 * shows the kernel's list of its mappings on standard error.
 * The blocks are older than BEFORE_SECONDS when they are freed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long resident_kib(void)
{
    char text[128] = {0};
    int fd = open("/proc/self/statm", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
        _exit(3);
    close(fd);
    const char *second = strchr(text, ' ');
    long pages = 0;
    while (*++second >= '0' && *second <= '9')
        pages = pages * 10 + (*second - '0');
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void show_mappings(void)
{
    char text[4096];
    int fd = open("/proc/self/smaps", O_RDONLY);
    ssize_t count;
    while (fd >= 0 && (count = read(fd, text, sizeof text)) > 0)
        if (write(2, text, (size_t)count) < 0)
            break;
}

int main(int argc, char **argv)
{
    static char line[64];
    if (argc < 4)
        return 2;
    size_t block = strtoul(argv[1], NULL, 10), total = strtoul(argv[2], NULL, 10) << 20;
    long at_most = strtol(argv[3], NULL, 10), before_seconds = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
    size_t count = total / block;
    char **blocks = malloc(count * sizeof *blocks);
    if (!blocks)
        return 2;
    memset(blocks, 0, count * sizeof *blocks);
    long before = resident_kib();
    for (size_t n = 0; n < count; n++) {
        if (!(blocks[n] = malloc(block)))
            return 2;
        memset(blocks[n], (int)n | 1, block);
    }
    if (before_seconds)
        pause_ms(before_seconds * 1000);
    for (size_t n = 0; n < count; n++)
        free(blocks[n]);
    long now = 0;
    for (int tries = 0; tries < 3000; tries++) {
        now = resident_kib() - before;
        if (now <= at_most)
            break;
        pause_ms(10);
    }
    if (now > at_most)
        show_mappings();
    int len = snprintf(line, sizeof line, "%ld\n", now);
    return write(1, line, (size_t)len) == len && now <= at_most ? 0 : 1;
}
