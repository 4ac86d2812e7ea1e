// Waiting, but not for ever, for a call that may never return, such as a question to a process that was stopped.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace megalith {

// f(), or nothing when it takes longer; then it is left behind with its thread. What it throws is thrown here. f owns
// what it uses.
template <typename F>
auto within(std::chrono::milliseconds patience, F f) -> std::optional<decltype(f())> {
  const auto promise = std::make_shared<std::promise<decltype(f())>>();
  auto future = promise->get_future();
  std::thread([promise, f = std::make_optional(std::move(f))]() mutable {
    try {
      auto result = (*f)();
      f.reset();  // what it owns does not end on this thread, while the process may be exiting
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
