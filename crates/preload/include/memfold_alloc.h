/* What a program may ask of the library that is preloaded into it. Declared weak, so that the program also runs
 * without: the address is then null. */
#ifndef MEMFOLD_ALLOC_H
#define MEMFOLD_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The allocator's counters. Fields are only ever added at the end. */
struct memfold_alloc_stats {
    uint64_t mapped_bytes;           /* address space mapped for blocks */
    uint64_t live_bytes;             /* blocks that the program has or its threads keep at hand */
    uint64_t cached_bytes;           /* free runs of pages that may be resident */
    uint64_t record_bytes;           /* the allocator's own records */
    uint64_t large_blocks;           /* blocks of whole pages */
    uint64_t large_bytes;            /* bytes of those */
    uint64_t process_resident_bytes; /* of the whole process */
    uint64_t process_minor_faults;   /* of the whole process */
    uint64_t mmap_calls;             /* by the allocator, as the following */
    uint64_t munmap_calls;
    uint64_t madvise_calls;
    uint64_t mprotect_calls;
    uint64_t mremap_calls;
};

/* Fills in the first `size` bytes of `*stats`, with zeros where the library knows no more. Returns 0, or -1 with errno
 * EINVAL where `stats` is null or `size` is no multiple of 8. Looks through all spans: a call now and then, not each
 * millisecond. */
extern int memfold_alloc_stats(struct memfold_alloc_stats *stats, size_t size) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
