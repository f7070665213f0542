// A program with strings and maps, as C++ programs are: an index from words to the lines that hold them, a cache with
// strings of all lengths, and an ordered table of records. It keeps to the protocol of memfold's workers: an object on a line
// when it has started, then one for each request, a request being {"millis":N,"steps":N,"operations":N}.
//
// An operation is one insertion, look-up or removal; it calls the allocator some times, or not at all.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <string>
#include <sys/prctl.h>
#include <csignal>
#include <unordered_map>
#include <vector>

namespace {

class Draw {
public:
    explicit Draw(std::uint64_t seed) : state_(seed | 1) {}
    std::uint64_t below(std::uint64_t bound) {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return ((state_ >> 32) * bound) >> 32;
    }

private:
    std::uint64_t state_;
};

constexpr std::size_t kWords = 20000;
constexpr std::size_t kLines = 4000;
constexpr std::size_t kCached = 8000;
constexpr std::size_t kRecords = 10000;

class Program {
public:
    explicit Program(std::uint64_t seed) : draw_(seed) {}

    // One step; how many operations it was.
    std::uint64_t step() {
        switch (draw_.below(3)) {
        case 0: return index_line();
        case 1: return use_cache();
        default: return keep_record();
        }
    }

private:
    std::string word() { return "w" + std::to_string(draw_.below(kWords) * 7919 % kWords); }

    // Reads a line of words into the index and forgets the oldest line.
    std::uint64_t index_line() {
        std::string line;
        for (int count = 0; count < 8; ++count) {
            std::string one = word();
            line += one + " ";
            index_[one].push_back(number_);
        }
        lines_.push_back(std::move(line));
        ++number_;
        if (lines_.size() > kLines) {
            forget(lines_.front());
            lines_.pop_front();
        }
        return 8;
    }

    void forget(const std::string& line) {
        for (std::size_t from = 0, to; (to = line.find(' ', from)) != std::string::npos; from = to + 1) {
            auto found = index_.find(line.substr(from, to - from));
            if (found == index_.end()) std::abort();
            found->second.erase(found->second.begin());
            if (found->second.empty()) index_.erase(found);
        }
    }

    // Looks a key up, and makes its value where there is none.
    std::uint64_t use_cache() {
        std::string key = "session:" + std::to_string(draw_.below(2 * kCached)) + ":profile";
        auto found = cache_.find(key);
        if (found != cache_.end()) {
            if (found->second.front() != 'v') std::abort();
            if (draw_.below(2) == 0) cache_.erase(found);
            return 1;
        }
        cache_.emplace(std::move(key), std::string(1 + draw_.below(600), 'v'));
        return 1;
    }

    std::uint64_t keep_record() {
        std::uint64_t id = draw_.below(1u << 30);
        records_[id] = {word(), word() + "@" + word(), std::to_string(id)};
        if (records_.size() > kRecords) {
            auto next = records_.lower_bound(draw_.below(1u << 30));
            records_.erase(next == records_.end() ? records_.begin() : next);
        }
        return 1;
    }

    Draw draw_;
    std::uint32_t number_ = 0;
    std::unordered_map<std::string, std::vector<std::uint32_t>> index_;
    std::deque<std::string> lines_;
    std::unordered_map<std::string, std::string> cache_;
    std::map<std::uint64_t, std::vector<std::string>> records_;
};

}  // namespace

int main(int, char** argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Dl_info info{};
    void* found = dlsym(RTLD_DEFAULT, "malloc");
    if (!argv[1] || !found || !dladdr(found, &info)) return 2;
    std::printf("{\"malloc_from\":\"%s\"}\n", info.dli_fname);
    std::fflush(stdout);
    Program program(std::strtoull(argv[1], nullptr, 10) * 0x9e3779b97f4a7c15u);
    unsigned long long millis, steps, wanted;
    while (std::scanf(" {\"millis\":%llu,\"steps\":%llu,\"operations\":%llu}", &millis, &steps, &wanted) == 3) {
        using Clock = std::chrono::steady_clock;
        auto start = Clock::now();
        std::uint64_t operations = 0, done = 0;
        auto goes_on = [&] { return (steps == 0 || done < steps) && (wanted == 0 || operations < wanted); };
        double seconds;
        do {
            for (int count = 0; count < 256 && goes_on(); ++count, ++done) {
                operations += program.step();
            }
            seconds = std::chrono::duration<double>(Clock::now() - start).count();
        } while (goes_on() && (millis == 0 || seconds * 1e3 < millis));
        std::printf("{\"operations\":%llu,\"elapsed_ns\":%.0f,\"calls_per_s\":%.17g,\"step_ns\":[]}\n",
                    static_cast<unsigned long long>(operations), seconds * 1e9, operations / seconds);
        std::fflush(stdout);
    }
}
