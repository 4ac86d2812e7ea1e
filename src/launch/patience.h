// Bounded waits for calls that may never return.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace megalith {

// Null if f() takes longer and is abandoned with its thread: f must own what it uses. Rethrows.
template <typename F>
auto within(std::chrono::milliseconds patience, F f) -> std::optional<decltype(f())> {
  const auto promise = std::make_shared<std::promise<decltype(f())>>();
  auto future = promise->get_future();
  std::thread([promise, f = std::make_optional(std::move(f))]() mutable {
    try {
      auto result = (*f)();
      f.reset();  // destroys its objects here, not at process exit
      promise->set_value(std::move(result));
    } catch (...) {
      f.reset();
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (future.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return future.get();
}

}  // namespace megalith
