#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace paceline::pool {
namespace {

using std::size_t;
using std::uint64_t;

// How long a thread watches for the next piece of work before it sleeps. Kernels of one forward pass follow each other
// within a few microseconds, while a wake-up takes tens of them; between passes nothing spins for longer than this.
constexpr auto spin_time = std::chrono::microseconds(60);

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Returns whether `is_ready` came true within the spin time.
template <class Ready>
bool spin_until(Ready is_ready) {
    const auto deadline = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < 32; ++i) {
            if (is_ready()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

thread_local bool inside_chunk = false;

// Chunks are numbered by tickets that only ever grow: one job owns the tickets [begin, end). A thread that takes a
// ticket below `end` holds up the job it belongs to, so the job's fields stay valid until it has counted the chunk as
// done; threads that are late or asleep hold up nobody.
class Pool {
   public:
    explicit Pool(unsigned num_threads) {
        for (unsigned i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
    }

    ~Pool() {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_workers_.notify_all();
        for (std::thread &worker : workers_) worker.join();
    }

    void run(size_t num_chunks, Call call, void *context) {
        const uint64_t begin = end_.load(std::memory_order_relaxed), end = begin + num_chunks;
        call_ = call;
        context_ = context;
        begin_ = begin;
        end_.store(end);  // publishes the fields above
        wake(num_chunks - 1);
        while (take_chunk()) {
        }
        const auto is_done = [&] { return done_.load() == end; };
        if (spin_until(is_done)) return;
        std::unique_lock lock(mutex_);
        caller_sleeps_.store(true);
        wake_caller_.wait(lock, is_done);
        caller_sleeps_.store(false);
    }

   private:
    // The stores and loads of `end_` and `num_sleepers_` (of `done_` and `caller_sleeps_`) are sequentially consistent:
    // either the one side sees that the other sleeps, or the other sees the news before it does.
    void wake(size_t wanted) {
        if (num_sleepers_.load() == 0) return;
        std::lock_guard lock(mutex_);
        for (size_t i = std::min<size_t>(wanted, workers_.size()); i; --i) wake_workers_.notify_one();
    }

    bool has_chunk() const { return next_.load() < end_.load(); }

    bool take_chunk() {
        uint64_t ticket = next_.load();
        do {
            if (ticket >= end_.load()) return false;
        } while (!next_.compare_exchange_weak(ticket, ticket + 1));
        const uint64_t end = end_.load();  // of this very job: no later one can begin before our chunk is done
        inside_chunk = true;
        call_(context_, static_cast<size_t>(ticket - begin_));
        inside_chunk = false;
        if (done_.fetch_add(1) + 1 == end && caller_sleeps_.load()) {
            std::lock_guard lock(mutex_);
            wake_caller_.notify_one();
        }
        return true;
    }

    void work() {
        for (;;) {
            while (take_chunk()) {
            }
            if (spin_until([this] { return has_chunk(); })) continue;
            std::unique_lock lock(mutex_);
            num_sleepers_.fetch_add(1);
            wake_workers_.wait(lock, [this] { return stopping_ || has_chunk(); });
            num_sleepers_.fetch_sub(1);
            if (stopping_) return;
        }
    }

    // Each on a cache line of its own: threads that watch one must not slow down those that write another.
    alignas(64) std::atomic<uint64_t> next_{0};
    alignas(64) std::atomic<uint64_t> end_{0};
    Call call_ = nullptr;
    void *context_ = nullptr;
    uint64_t begin_ = 0;
    alignas(64) std::atomic<uint64_t> done_{0};
    std::atomic<bool> caller_sleeps_{false};
    alignas(64) std::atomic<int> num_sleepers_{0};
    bool stopping_ = false;
    std::mutex mutex_;
    std::condition_variable wake_workers_, wake_caller_;
    std::vector<std::thread> workers_;
};

struct State {
    std::mutex mutex;  // held while work runs: one job at a time
    unsigned num_threads = std::max(1u, std::thread::hardware_concurrency());
    Pool *pool = nullptr;
};

// Never destroyed: a worker may still watch it while the process exits.
State *state = new State;

// A forked child has none of the workers, and locks may be held by threads that it lacks: it starts afresh.
void start_afresh() {
    State *fresh = new State;
    fresh->num_threads = state->num_threads;
    state = fresh;
}

const int registered = pthread_atfork(nullptr, nullptr, start_afresh);

}  // namespace

unsigned num_threads() {
    static_cast<void>(registered);
    std::lock_guard lock(state->mutex);
    return state->num_threads;
}

void set_num_threads(unsigned count) {
    std::lock_guard lock(state->mutex);
    if (count == state->num_threads) return;
    delete state->pool;
    state->pool = nullptr;
    state->num_threads = std::max(1u, count);
}

void run(size_t num_chunks, Call call, void *context) {
    if (inside_chunk || num_chunks < 2) {
        for (size_t chunk = 0; chunk < num_chunks; ++chunk) call(context, chunk);
        return;
    }
    std::lock_guard lock(state->mutex);
    if (!state->pool) state->pool = new Pool(state->num_threads);
    state->pool->run(num_chunks, call, context);
}

}  // namespace paceline::pool
