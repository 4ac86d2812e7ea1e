#include "train/memory_check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/strings.h"
#include "device/machine.h"
#include "device/memory.h"

namespace megalith {
namespace {

// One line per option that saves memory, and how to continue regardless.
std::string savings_text(const Resolved& resolved, const MemoryEstimate& estimate, int64_t missing_bytes,
                         c10::Device device, const MemoryMeasure& measure, const SpeedOf& speed_of) {
  std::vector<std::string> lines;
  int64_t saved = 0;
  for (const MemorySaving& saving :
       cheapest_savings(resolved, estimate, missing_bytes, /*may_add_ranks=*/!device.is_cpu(), measure, speed_of)) {
    lines.push_back(fmt::format("{} saves {}{}", saving.words, format_bytes(saving.bytes),
                                speed_of ? ", and costs " + saving.cost : ""));
    saved += saving.bytes;
  }
  if (saved < missing_bytes) {
    const bool trains = estimate.gradients > 0;
    lines.push_back(
        fmt::format("{}: spread the model over more devices with --tensor_model_parallel_size{} "
                    "--pipeline_model_parallel_size{}, or take a smaller one",
                    lines.empty() ? "no option saves a tenth of what is missing" : "that is not enough",
                    trains ? "," : " or", trains ? " or --use_torch_fsdp2" : ""));
  }
  return join(lines, "\n  ");
}

std::string owners_text(const MemoryEstimate& estimate) { return fmt::format("it holds {}", estimate.text()); }

}  // namespace

std::optional<MemoryThere> memory_there(c10::Device device, int local_world_size, const std::filesystem::path& root) {
  if (!device.is_cpu()) {
    const MemoryStats stats = memory_stats(device);
    if (stats.total_bytes <= 0) return std::nullopt;
    const int64_t free_bytes = stats.total_bytes - stats.used_bytes;
    return MemoryThere{free_bytes, fmt::format("{} of {} of {} are free", format_bytes(free_bytes),
                                               format_bytes(stats.total_bytes), device.str())};
  }
  const MemoryFacts facts = read_memory(root);
  if (!facts.available_bytes || !facts.total_bytes) return std::nullopt;
  MemoryThere there{*facts.available_bytes,
                    fmt::format("{} of {} of main memory are free", format_bytes(*facts.available_bytes),
                                format_bytes(*facts.total_bytes))};
  if (facts.limit_bytes) {
    // The page cache is reclaimable.
    const int64_t used = std::max<int64_t>(facts.limit_used_bytes.value_or(0) - facts.limit_cache_bytes.value_or(0), 0);
    const int64_t left = std::max<int64_t>(*facts.limit_bytes - used, 0);
    if (left < there.bytes) {
      there = {left, fmt::format("the control group allows {}, of which {} are in use",
                                 format_bytes(*facts.limit_bytes), format_bytes(used))};
    }
  }
  if (local_world_size > 1) {
    there.bytes /= local_world_size;
    there.text += fmt::format(", for {} ranks", local_world_size);
  }
  return there;
}

void check_memory(const Resolved& resolved, const MemoryEstimate& estimate, c10::Device device,
                  const std::optional<MemoryThere>& there, const MemoryMeasure& measure, const SpeedOf& speed_of) {
  if (resolved.config.runtime.allow_oversubscription || !there || estimate.total() <= there->bytes) return;
  throw UserError(fmt::format("rank {} needs about {}, and {} are there for it ({})", estimate.rank,
                              format_bytes(estimate.total()), format_bytes(there->bytes), there->text),
                  fmt::format("{}\n  {}\n  --allow_oversubscription starts all the same", owners_text(estimate),
                              savings_text(resolved, estimate, estimate.total() - there->bytes, device, measure,
                                           speed_of)));
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (of_torch == nullptr) return false;
  // LibTorch's CPU allocator has no exception class for it.
  const std::string_view text = of_torch->what_without_backtrace();
  return text.find("can't allocate memory") != std::string_view::npos ||
         text.find("not enough memory") != std::string_view::npos;
}

std::string out_of_memory_text(const std::exception& error, const Resolved& resolved, const MemoryEstimate& estimate,
                               c10::Device device, const std::optional<MemoryThere>& there,
                               const MemoryMeasure& measure, const SpeedOf& speed_of) {
  std::string text =
      fmt::format("out of memory: rank {} needs about {}", estimate.rank, format_bytes(estimate.total()));
  if (there)
    text += fmt::format(", and {} were there for it at its start ({})", format_bytes(there->bytes), there->text);
  text += fmt::format("\n  {}\n  {}", owners_text(estimate),
                      savings_text(resolved, estimate, estimate.total() / 4, device, measure, speed_of));
  if (const auto* of_torch = dynamic_cast<const c10::Error*>(&error)) {
    const std::string_view told = of_torch->what_without_backtrace();
    text += fmt::format("\n  LibTorch said: {}", told.substr(0, told.find('\n')));
  }
  return text;
}

}  // namespace megalith
