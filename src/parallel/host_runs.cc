#include "parallel/host_runs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "device/transfer.h"

namespace megalith {
namespace {

// Landings in flight.
constexpr std::ptrdiff_t kMostLandings = 2;

}  // namespace

HostRuns::HostRuns(at::Device device) : device_(device), copies_(side_stream(device)) {}
HostRuns::~HostRuns() = default;

at::Tensor HostRuns::make_run(int64_t num_elements, at::ScalarType dtype) const {
  return empty_for_copies({num_elements}, dtype, device_).zero_();
}

void HostRuns::follow_current() const {
  StreamEvent issued(device_);
  issued.record(current_stream(device_));
  issued.make_wait(copies_);
}

at::Tensor HostRuns::take_landing(const at::Tensor& like) {
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) {
    return one.numel() >= like.numel() && one.scalar_type() == like.scalar_type();
  });
  if (found != free_.end()) {
    const at::Tensor landing = *found;
    free_.erase(found);
    return landing;
  }
  at::Tensor landing = empty_for_copies({like.numel()}, like.scalar_type(), device_);
  landing_bytes_ += static_cast<int64_t>(landing.nbytes());
  return landing;
}

StreamEvent HostRuns::land(const at::Tensor& sum, const at::Tensor& run, bool replaces) {
  Landing landing{.landed = {}, .run = run, .replaces = replaces, .come = StreamEvent(device_)};
  const bool is_direct = replaces && sum.scalar_type() == run.scalar_type();
  if (!is_direct) {
    const auto waits_to_be_added = [](const Landing& one) { return one.landed.defined(); };
    while (std::count_if(under_way_.begin(), under_way_.end(), waits_to_be_added) >= kMostLandings) settle_oldest();
    landing.landed = take_landing(sum);
  }
  follow_current();
  StreamEvent read(device_);
  {
    const StreamScope scope(copies_);
    const at::Tensor& to = is_direct ? run : landing.landed.narrow(0, 0, sum.numel());
    to.copy_(sum, /*non_blocking=*/true);
    landing.come.record(copies_);
    read.record(copies_);
  }
  under_way_.push_back(std::move(landing));
  return read;
}

void HostRuns::settle_oldest() {
  Landing landing = std::move(under_way_.front());
  under_way_.pop_front();
  landing.come.wait();
  if (!landing.landed.defined()) return;
  const at::Tensor come = landing.landed.narrow(0, 0, landing.run.numel());
  landing.replaces ? landing.run.copy_(come) : landing.run.add_(come);
  free_.push_back(std::move(landing.landed));
}

void HostRuns::settle() {
  StreamEvent issued(device_);
  issued.record(copies_);
  issued.wait();
  while (!under_way_.empty()) settle_oldest();
}

}  // namespace megalith
