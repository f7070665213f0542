/* C++ exceptions that are thrown, unwound and caught while all that they touch is evicted. */
#include "case.h"
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/* Of the memory that destructors read while the stack is unwound. */
struct witness {
    const uint64_t *memory;
    size_t at;
    size_t *seen;
    ~witness()
    {
        CHECK(memory[at] == word(at));
        ++*seen;
    }
};

struct failure : std::runtime_error {
    failure(const std::string &what, std::vector<uint64_t> words) : runtime_error(what), words(std::move(words)) {}
    std::vector<uint64_t> words;
};

enum { DEPTH = 200 };

[[gnu::noinline]] void descend(const uint64_t *p, size_t depth, size_t *seen)
{
    witness here{p, depth * (WORDS / DEPTH), seen};
    if (depth + 1 < DEPTH)
        return descend(p, depth + 1, seen);
    /* What is thrown is copied from evicted memory into memory that may be evicted before it is caught. */
    throw failure(std::string(reinterpret_cast<const char *>(p), 3 * PAGE), std::vector<uint64_t>(p, p + WORDS / 8));
}

void unwound()
{
    uint64_t *p = filled();
    for (int round = 0; round < 4; round++) {
        wait_until_evicted(p);
        size_t seen = 0;
        std::unique_ptr<failure> kept;
        try {
            descend(p, 0, &seen);
        } catch (const failure &error) {
            kept = std::make_unique<failure>(error);
        }
        CHECK(kept && seen == DEPTH);
        CHECK(std::equal(kept->words.begin(), kept->words.end(), p) && kept->words.size() == WORDS / 8);
    }
    CHECK(intact(p));
}

/* An exception that waits, evicted, and is thrown again by another hand. */
void thrown_again_when_cold()
{
    uint64_t *p = filled();
    std::exception_ptr kept;
    try {
        throw failure("kept", std::vector<uint64_t>(p, p + WORDS));
    } catch (...) {
        kept = std::current_exception();
    }
    for (int round = 0; round < 5; round++) {
        wait_until_evicted(p);
        try {
            std::rethrow_exception(kept);
        } catch (const failure &error) {
            CHECK(error.words.size() == WORDS && intact(error.words.data()));
        }
    }
    CHECK(intact(p));
}

} // namespace

CASES({"unwound", unwound}, {"thrown_again_when_cold", thrown_again_when_cold})
