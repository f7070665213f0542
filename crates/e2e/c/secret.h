/* A secret is 32 bytes, of which each 8 follow from the 8 before: so it is known wherever it lies, and who looks for it has no copy. */
#ifndef SECRET_H
#define SECRET_H
#include <stdint.h>

/* The word that follows (the output function of SplitMix64, which is a permutation). */
static inline uint64_t next(uint64_t word)
{
    word += 0x9E3779B97F4A7C15u;
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
    word = (word ^ word >> 27) * 0x94D049BB133111EBu;
    return word ^ word >> 31;
}

static inline void make_secret(uint64_t at[4], uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        at[i] = next(i ? at[i - 1] : seed);
}
#endif
