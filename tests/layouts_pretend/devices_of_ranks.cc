#include "layouts_pretend/devices_of_ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/error.h"
#include "pretend/accelerator/on_host.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith::test {
namespace {

class PretendDevices : public ThreadDevices {
 public:
  at::Device device_of(int rank) const override {
    MEGALITH_CHECK(rank < pretend::num_devices(), "rank {} has no pretend device: PRETEND_DEVICES is {}", rank,
                   int{pretend::num_devices()});
    return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(rank)};
  }
  at::Tensor host_view(const at::Tensor& tensor) const override {
    pretend::before_operator_on(tensor.device());
    pretend::note_use_of(tensor, /*is_written=*/true);
    return pretend::as_host(tensor);
  }
  void in_stream_order(at::Device device, std::function<void()> work) const override {
    const c10::StreamId stream = pretend::current_stream_id(device.index());
    if (stream == pretend::kMainStream) return work();
    pretend::streams_of(device.index()).push(stream, std::move(work));
  }
};

// What the check reads for its comparison, and the numbers of a step, which it reads at once.
bool is_of_the_check(const pretend::Wait& wait) {
  return wait.place.starts_with("run_steps") || wait.place == "Optimizer::step < run_steps" ||
         wait.what.ends_with(" event");
}

// Waits of a run of so many steps, of all ranks together, by what and where.
std::map<std::string, int64_t> waits_of_run(LayoutRow& row, int num_steps) {
  row.layout().derived.train_iters = num_steps;
  pretend::forget_waits();
  run_as_threads(row.layout(), on_devices());
  std::map<std::string, int64_t> counts;
  for (const pretend::Wait& wait : pretend::waits()) {
    if (is_of_the_check(wait)) continue;
    counts[wait.what + ": " + wait.place] += wait.count;
  }
  return counts;
}

}  // namespace

const ThreadDevices& devices_of_ranks() {
  static const PretendDevices devices;
  return devices;
}

CheckHooks on_devices(CheckHooks hooks) {
  hooks.devices = &devices_of_ranks();
  return hooks;
}

void forget_what_streams_hold() {
  for (int device = 0; device < pretend::num_devices(); ++device) {
    pretend::streams_of(static_cast<c10::DeviceIndex>(device)).forget_tasks();
  }
}

WaitsOfStep waits_of_step(LayoutRow& row) {
  const std::map<std::string, int64_t> two = waits_of_run(row, 2);
  std::map<std::string, int64_t> three = waits_of_run(row, 3);
  for (const auto& [place, count] : two) three[place] -= count;
  WaitsOfStep found;
  for (const auto& [place, count] : three) {
    if (count == 0) continue;
    found.count += count;
    found.text += fmt::format("\n  {} x {}", count, place);
  }
  const int64_t ranks = row.layout().derived.world_size;
  MEGALITH_CHECK(found.count % ranks == 0, "{} waits of {} ranks{}", found.count, ranks, found.text);
  found.count /= ranks;
  return found;
}

}  // namespace megalith::test
