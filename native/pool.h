// The one pool of threads that native kernels run on.
//
// Work is cut into chunks whose results do not depend on which thread runs them, and whose number depends on the work's
// shape alone, so that the pool's size never changes a number. Never split a sum over chunks.
#pragma once

#include <cstddef>
#include <type_traits>

namespace paceline::pool {

// Threads that work is spread over, the caller's included. Starts no thread.
unsigned num_threads();

// From now on use `count` threads (at least 1). Waits for running work; the new threads start with the next work.
void set_num_threads(unsigned count);

using Call = void (*)(void *context, std::size_t chunk);

// Runs call(context, 0) .. call(context, num_chunks - 1), in no set order, and returns when all are done. Writes made
// before it are seen by the chunks, and the chunks' writes by what follows it, so it is a barrier too. The calling
// thread takes part. Inside a chunk, a nested call runs its chunks one after the other. Chunks must not throw.
void run(std::size_t num_chunks, Call call, void *context);

// `work(chunk)` for each chunk; a callable of any type, never copied or allocated.
template <class Work>
void parallel_for(std::size_t num_chunks, Work &&work) {
    if (num_chunks == 1) return static_cast<void>(work(std::size_t{0}));
    run(
        num_chunks,
        [](void *context, std::size_t chunk) { (*static_cast<std::remove_reference_t<Work> *>(context))(chunk); },
        const_cast<void *>(static_cast<const void *>(&work)));
}

}  // namespace paceline::pool
