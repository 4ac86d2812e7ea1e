// Work on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace megalith {

// Calls body(0) … body(count - 1) on at most num_threads threads, including the caller's. Finishes all, then rethrows
// the first failure by index.
void for_each_on_threads(size_t count, size_t num_threads, const std::function<void(size_t)>& body);

}  // namespace megalith
