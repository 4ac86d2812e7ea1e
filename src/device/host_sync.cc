#include "device/host_sync.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "device/host_sync_cuda.h"

namespace megalith {
namespace {

constexpr size_t kMostRanges = 5;  // outer ones add little

// LibTorch hands it to backward's threads; test kinds are free.
c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO_2; }

class Forbidden final : public c10::DebugInfoBase {};

bool is_forbidden() { return c10::ThreadLocalDebugInfo::get(kind()) != nullptr; }

// Noted at the throw: LibTorch's error names no place and arrives after the ranges closed.
class FirstFailure {
 public:
  static FirstFailure& instance() {
    static FirstFailure failure;
    return failure;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    place_.clear();
  }
  void note(const std::string& place) {
    const std::lock_guard lock(mutex_);
    if (place_.empty()) place_ = place;
  }
  std::string place() {
    const std::lock_guard lock(mutex_);
    return place_.empty() ? "outside of any operator" : place_;
  }

 private:
  std::mutex mutex_;
  std::string place_;
};

// "torch::autograd::CppNode<megalith::(anonymous namespace)::LinearFunction>" becomes LinearFunction.
std::string readable(std::string name) {
  for (const std::string_view noise :
       {"torch::autograd::CppNode<", "torch::autograd::generated::", "megalith::", "(anonymous namespace)::"}) {
    for (size_t at = name.find(noise); at != std::string::npos; at = name.find(noise)) name.erase(at, noise.size());
  }
  if (name.ends_with('>') && name.find('<') == std::string::npos) name.pop_back();
  return name;
}

std::vector<std::string>& open_ranges() {
  static thread_local std::vector<std::string> ranges;
  return ranges;
}

// Keeps the innermost (waiting) and the outermost (called) of nested LibTorch operators.
std::string place_here() {
  const std::vector<std::string>& ranges = open_ranges();
  const auto is_of_libtorch = [&](size_t i) { return ranges[i].starts_with("aten::"); };
  std::string place;
  size_t named = 0;
  for (size_t i = ranges.size(); i-- > 0 && named < kMostRanges;) {
    const bool is_innermost = i + 1 == ranges.size();
    if (!is_innermost && i > 0 && is_of_libtorch(i) && is_of_libtorch(i - 1)) continue;
    place += (named++ == 0 ? "" : " < ") + readable(ranges[i]);
  }
  return place.empty() ? "outside of any operator" : place;
}

std::unique_ptr<at::ObserverContext> open_range(const at::RecordFunction& range) {
  open_ranges().emplace_back(range.name());
  return nullptr;
}

void close_range(const at::RecordFunction& /*range*/, at::ObserverContext* /*context*/) {
  if (open_ranges().empty()) return;
  if (std::uncaught_exceptions() > 0) FirstFailure::instance().note(place_here());
  open_ranges().pop_back();
}

// Forbids waits while it lives, on this thread and its backward's.
class Watch {
 public:
  explicit Watch(const c10::Device& device) : device_(device), forbidden_(kind(), std::make_shared<Forbidden>()) {
    FirstFailure::instance().forget();
    open_ranges().clear();
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(open_range, close_range)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
    make_libtorch_fail_on_waits(device_, true);
  }
  ~Watch() {
    make_libtorch_fail_on_waits(device_, false);
    at::removeCallback(callback_);
    open_ranges().clear();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  c10::Device device_;
  c10::DebugInfoGuard forbidden_;
  at::CallbackHandle callback_ = 0;
};

HostSyncError error_of(std::string_view what, const std::string& place) {
  return HostSyncError(
      fmt::format("the host waits for the device within a training step: {}, in {}\n  fail_on_host_sync forbids it. "
                  "docs/gpu.md lists what waits by design; leave the option out to train all the same",
                  what, place));
}

}  // namespace

void without_host_sync(const c10::Device& device, const std::function<void()>& work) {
  if (device.is_cpu()) {
    work();
    return;
  }
  MEGALITH_CHECK(!is_forbidden(), "waits of the host are forbidden twice");
  const Watch watch(device);
  try {
    work();
  } catch (const HostSyncError&) {
    throw;
  } catch (const std::exception& error) {
    if (!is_wait_of_libtorch(error)) throw;
    throw error_of("an operator or a copy of LibTorch's", FirstFailure::instance().place());
  }
}

bool sees_waits_of_libtorch(const c10::Device& device) { return libtorch_tells_of_waits(device); }

void note_host_sync(std::string_view what) {
  if (is_forbidden()) throw error_of(what, place_here());
}

}  // namespace megalith
