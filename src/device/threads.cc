#include "device/threads.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <future>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "config/option.h"
#include "core/error.h"
#include "core/input_file.h"
#include "device/machine.h"

namespace megalith {
namespace {

std::optional<int> read_int(const std::string& path) {
  std::istringstream file(try_read_facts(path).value_or(""));
  int value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

void ThreadOptions::visit(OptionVisitor& v) {
  v.group("Device", {.in_toy = InToy::kKept, .acts_in = kWithModel});
  v.field("num_threads", num_threads,
          "Threads an operator uses on the CPU; unset: OMP_NUM_THREADS, or the cores shared by the ranks of a machine.")
      .unit("threads")
      .at_least(1)
      .changes_numbers(false)
      .by_rank(ByRank::kFree);
}

int usable_cores() {
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    std::set<std::pair<int, int>> physical;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      const std::string topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
      // Unknown processors count as own cores.
      physical.emplace(read_int(topology + "physical_package_id").value_or(0),
                       read_int(topology + "core_id").value_or(-1 - cpu));
    }
    if (!physical.empty()) cores = static_cast<int>(physical.size());
  }
  if (const std::optional<double> quota = read_cpu_quota("/")) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(*quota))));
  }
  return cores;
}

int default_num_threads(int ranks_on_this_machine) {
  MEGALITH_CHECK(ranks_on_this_machine >= 1, "{} ranks on this machine", ranks_on_this_machine);
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    // "4", or by nesting level "4,2".
    const std::string_view all(text);
    int value = 0;
    const auto result = std::from_chars(all.data(), all.data() + all.size(), value);
    if (result.ec == std::errc() && value >= 1) return value;
  }
  return std::max(1, usable_cores() / ranks_on_this_machine);
}

int set_num_threads(const ThreadOptions& options, int ranks_on_this_machine) {
  const int count =
      options.num_threads ? narrow<int>(*options.num_threads) : default_num_threads(ranks_on_this_machine);
  at::set_num_threads(count);
  return count;
}

bool ProcessorShare::has_processor_for_each() const {
  const double available = quota > 0 ? std::min<double>(processors, quota) : processors;
  // Tolerates half a thread: a shell, a monitor.
  return threads <= 1 || threads * ranks <= available - others_load + 0.5;
}

ProcessorShare processor_share(int threads, int ranks_on_this_machine) {
  ProcessorShare share{.threads = threads, .ranks = ranks_on_this_machine};
  share.processors = omp_get_num_procs();
  share.quota = read_cpu_quota("/").value_or(0);
  // "0.84 0.51 0.33 3/712 4242": the minute's load may be our own earlier run, so what runs now bounds it.
  std::istringstream file(try_read_facts("/proc/loadavg").value_or(""));
  double load = 0, skipped = 0;
  int running = 0;
  if (file >> load >> skipped >> skipped >> running) {
    share.others_load = std::min<double>(load, std::max(0, running - ranks_on_this_machine));
  }
  return share;
}

void let_waiting_threads_sleep() {
  // libgomp manages a team as long as the thread that began it lives.
  static std::once_flag once;
  std::call_once(once, [] {
    std::promise<void> done;
    std::thread([&done] {
      std::atomic<int> started = 0;
#pragma omp parallel num_threads(omp_get_num_procs() + 1)
      ++started;
      done.set_value();
      while (true) ::pause();
    }).detach();
    done.get_future().wait();
  });
}

std::optional<std::string> choose_thread_waiting(const ProcessorShare& share) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return std::nullopt;
  if (share.has_processor_for_each()) return std::nullopt;
  let_waiting_threads_sleep();
  std::string why = fmt::format("{} threads on {} processor{}", share.threads * share.ranks, share.processors,
                                share.processors == 1 ? "" : "s");
  if (share.quota > 0) why += fmt::format(", of which this container may use {:.3g}", share.quota);
  if (share.others_load >= 0.5) why += fmt::format(", which others keep busy (load {:.3g})", share.others_load);
  return fmt::format("threads that wait sleep instead of spin: {}; OMP_WAIT_POLICY=active lets them spin", why);
}

SingleThreadedScope::SingleThreadedScope() : previous_(at::get_num_threads()) { at::set_num_threads(1); }

SingleThreadedScope::~SingleThreadedScope() { at::set_num_threads(previous_); }

}  // namespace megalith
