// TCMalloc's operators new that say how often a block will be touched: each gives blocks that hold their bytes, plain delete takes them, and those that
// are cold share no page with any other. Without a library that has the operators it says so.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <malloc.h>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

enum class __hot_cold_t : std::uint8_t;

#define WEAK __attribute__((weak))
WEAK void *operator new(std::size_t, __hot_cold_t);
WEAK void *operator new[](std::size_t, __hot_cold_t);
WEAK void *operator new(std::size_t, const std::nothrow_t &, __hot_cold_t) noexcept;
WEAK void *operator new[](std::size_t, const std::nothrow_t &, __hot_cold_t) noexcept;
WEAK void *operator new(std::size_t, std::align_val_t, __hot_cold_t);
WEAK void *operator new[](std::size_t, std::align_val_t, __hot_cold_t);
WEAK void *operator new(std::size_t, std::align_val_t, const std::nothrow_t &, __hot_cold_t) noexcept;
WEAK void *operator new[](std::size_t, std::align_val_t, const std::nothrow_t &, __hot_cold_t) noexcept;

static const auto COLD = __hot_cold_t(1), NOT_COLD = __hot_cold_t(128), HOT = __hot_cold_t(254);

struct Block {
    char *at;
    std::size_t size, align;
    bool array;
    unsigned char tag;
};

static bool failed;

static void expect(bool is_so, const char *what) {
    if (!is_so) {
        std::printf("not so: %s\n", what);
        failed = true;
    }
}

static Block make(int which, std::size_t size, __hot_cold_t heat) {
    const auto wide = std::align_val_t(64);
    void *at = nullptr;
    switch (which) {
    case 0: at = operator new(size, heat); break;
    case 1: at = operator new[](size, heat); break;
    case 2: at = operator new(size, std::nothrow, heat); break;
    case 3: at = operator new[](size, std::nothrow, heat); break;
    case 4: at = operator new(size, wide, heat); break;
    case 5: at = operator new[](size, wide, heat); break;
    case 6: at = operator new(size, wide, std::nothrow, heat); break;
    case 7: at = operator new[](size, wide, std::nothrow, heat); break;
    }
    Block block{static_cast<char *>(at), size, which < 4 ? 16u : 64u, which % 2 == 1, (unsigned char)(size + which)};
    expect(at && reinterpret_cast<std::uintptr_t>(at) % block.align == 0, "a block is there and aligned");
    expect(malloc_usable_size(at) >= size, "it is as long as asked");
    std::memset(at, block.tag, size);
    return block;
}

static void end(const Block &block) {
    for (std::size_t i = 0; i < block.size; i++)
        if ((unsigned char)block.at[i] != block.tag) {
            expect(false, "a block holds its bytes");
            break;
        }
    if (block.align > 16)
        block.array ? operator delete[](block.at, std::align_val_t(64)) : operator delete(block.at, std::align_val_t(64));
    else
        block.array ? operator delete[](block.at) : operator delete(block.at);
}

static std::set<std::uintptr_t> pages(const std::vector<Block> &blocks) {
    std::set<std::uintptr_t> found;
    for (const auto &block : blocks)
        for (auto page = std::uintptr_t(block.at) >> 12; page <= (std::uintptr_t(block.at) + block.size - 1) >> 12; page++)
            found.insert(page);
    return found;
}

static bool handled;

// Each operator that has no memory calls the new handler, and then throws or gives null, through C++ frames.
static bool refuses() {
    volatile std::size_t huge = std::size_t(PTRDIFF_MAX);
    std::set_new_handler([] {
        handled = true;
        std::set_new_handler(nullptr);
    });
    int thrown = 0;
    std::string destroyed(100, 'x');
    try { operator new(huge, COLD); } catch (const std::bad_alloc &) { thrown++; }
    try { operator new[](huge, HOT); } catch (const std::bad_alloc &) { thrown++; }
    try { operator new(huge, std::align_val_t(64), COLD); } catch (const std::bad_alloc &) { thrown++; }
    try { operator new[](huge, std::align_val_t(64), COLD); } catch (const std::bad_alloc &) { thrown++; }
    return thrown == 4 && handled && !operator new(huge, std::nothrow, COLD) && !operator new[](huge, std::nothrow, HOT)
        && !operator new(huge, std::align_val_t(64), std::nothrow, COLD)
        && !operator new[](huge, std::align_val_t(64), std::nothrow, COLD);
}

int main() {
    void *(*volatile there)(std::size_t, __hot_cold_t) = &operator new;
    if (!there) {
        std::puts("no such operators");
        return 0;
    }
    std::vector<Block> cold, others;
    const std::size_t sizes[] = {1, 24, 200, 1500, 9000, 60000};
    for (int round = 0; round < 4000; round++) {
        const std::size_t size = sizes[round % 6];
        cold.push_back(make(round % 8, size, COLD));
        others.push_back(make(round % 8, size, round % 3 ? HOT : NOT_COLD));
        others.push_back({static_cast<char *>(operator new(size)), size, 16, false, 7});
        std::memset(others.back().at, 7, size);
        for (auto *blocks : {&cold, &others})
            if (blocks->size() > 800) {
                std::swap((*blocks)[round % blocks->size()], blocks->back());
                end(blocks->back());
                blocks->pop_back();
            }
    }
    const auto of_cold = pages(cold);
    for (auto page : pages(others))
        if (of_cold.count(page)) {
            expect(false, "a cold block shares no page with another");
            break;
        }
    // Freed by a thread that did not allocate them, and used again by one that did not free them.
    std::thread([&] {
        for (const auto &block : cold)
            end(block);
        cold.clear();
        for (int round = 0; round < 500; round++)
            cold.push_back(make(round % 8, sizes[round % 6], COLD));
    }).join();
    for (const auto &block : cold)
        end(block);
    for (const auto &block : others)
        end(block);
    expect(refuses(), "who asks for too much is told");
    std::puts(failed ? "failed" : "cold blocks lie apart");
}
