/* memfold.h: a program names the memory that may be folded, and says what it knows of it.
 *
 * Memory that is folded is compressed while nobody touches it, and back when somebody does. Every function may be
 * called from any thread, but not from a signal handler, and returns 0 or a negated error number of <errno.h>.
 * Link with `pkg-config --cflags --libs memfold` (add --static for the archive); never unload the library.
 */
#ifndef MEMFOLD_H
#define MEMFOLD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0 in a field leaves it to the environment (MEMFOLD_COLD_AGE and its kin), else to the default. */
struct memfold_options {
    uint64_t cold_age_ms;    /* how long memory must go untouched before it is folded: 10000 */
    uint64_t max_stall_ppm;  /* share of time that the program may wait for it, in millionths: 5000 */
    uint64_t resident_limit; /* bytes that the process may have resident; threads wait for room above: by its control group's limit */
    uint64_t max_cpu_ppm;    /* share of one CPU that folding may take below that, in millionths: 250000 */
};

/* Bytes unless the name says otherwise. */
struct memfold_stats {
    uint64_t managed_bytes;  /* registered memory that may be folded */
    uint64_t evicted_bytes;  /* of that, what is compressed and given back to the kernel now */
    uint64_t overhead_bytes; /* what the compressed bytes take, with tables and buffers */
    uint64_t pages_restored; /* pages that came back from the store since the start */
    uint64_t stall_ns;       /* time that the program's threads have waited for it, ns */
    uint64_t pages_lost;     /* anything but 0 is a defect of memfold */
    uint64_t running;        /* 1 while the program is folded */
};

enum memfold_hint {
    MEMFOLD_NORMAL = 0,         /* nothing in particular; takes MEMFOLD_KEEP back */
    MEMFOLD_WILL_NEED = 1,      /* comes back before the call returns */
    MEMFOLD_DONT_NEED_SOON = 2, /* may be folded without growing cold first */
    MEMFOLD_KEEP = 3            /* comes back, and stays until MEMFOLD_NORMAL */
};

/* Gets ready. NULL takes all options from the environment. MEMFOLD_DAEMON there names the socket of a daemon under whose
 * budget the program is to be. -EALREADY when it was started before, -EBUSY when libmemfold.so is preloaded, -ENOTSUP
 * when this machine or user cannot fold, -EINVAL for a bad variable. */
int memfold_start(const struct memfold_options *options);

/* Has the whole pages of a range folded when they are cold. It must be private anonymous memory that can be read and
 * written (-EINVAL otherwise). It may be unmapped, remapped, protected or dropped without being unregistered. */
int memfold_register(const void *addr, size_t len);

/* Brings a range back and folds it no more. -ENOENT when nothing of it is registered. */
int memfold_unregister(const void *addr, size_t len);

/* Says what the program knows of a registered range. */
int memfold_hint(const void *addr, size_t len, int hint);

/* What it has come to so far. */
int memfold_stats(struct memfold_stats *stats);

/* Brings everything back and ends memfold's threads, for good. */
int memfold_stop(void);

#ifdef __cplusplus
}
#endif
#endif
