// The C++ operators, exceptions and containers, from several threads.
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

struct alignas(256) Wide {
    char bytes[300];
};

static bool refused() {
    volatile std::size_t huge = std::size_t(PTRDIFF_MAX);
    try {
        delete[] new char[huge];
    } catch (const std::bad_alloc &) {
        return new (std::nothrow) char[huge] == nullptr;
    }
    return false;
}

int main() {
    std::vector<std::thread> threads;
    std::vector<std::uint64_t> sums(4);
    for (unsigned t = 0; t < sums.size(); t++)
        threads.emplace_back([t, &sums] {
            std::map<std::string, std::vector<std::string>> map;
            for (int i = 0; i < 20000; i++)
                map["key" + std::to_string(i % 997)].push_back(std::string(i % 200, char('a' + i % 26)));
            for (const auto &entry : map)
                for (const auto &value : entry.second)
                    sums[t] = sums[t] * 31 + value.size() + (value.empty() ? 0 : value.back());
        });
    for (auto &thread : threads)
        thread.join();
    std::vector<std::unique_ptr<Wide>> wide;
    for (int i = 0; i < 1000; i++) {
        wide.push_back(std::make_unique<Wide>());
        if (reinterpret_cast<std::uintptr_t>(wide.back().get()) % 256)
            return 1;
    }
    std::cout << sums[0] << (sums[0] == sums[3] ? " same" : " different") << (refused() ? " refused" : " given") << "\n";
}
