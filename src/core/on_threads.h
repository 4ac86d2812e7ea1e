// Pieces of work on several threads at once.
#pragma once

#include <cstddef>
#include <functional>

namespace megalith {

// Calls body(0) … body(count - 1) on at most num_threads threads, the caller's among them. All pieces are done; then
// what the first that failed threw is thrown.
void for_each_on_threads(size_t count, size_t num_threads, const std::function<void(size_t)>& body);

}  // namespace megalith
