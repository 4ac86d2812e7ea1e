// See waits.h.
#include "pretend/accelerator/waits.h"

#include <ATen/record_function.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "device/host_sync.h"
#include "pretend/accelerator/graphs.h"
#include "pretend/accelerator/streams.h"

namespace megalith::pretend {
namespace {

constexpr int kMostFrames = 96, kNamedFunctions = 3;

thread_local int depth_of_work = 0;
std::atomic<int64_t> periods{0};

// The function's name without namespaces of ours and arguments; empty when it says nothing to a reader.
std::string readable_name(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  if (status != 0) return "";
  std::string name = text.get();
  constexpr std::string_view kOurs = "megalith::";
  if (name.rfind(kOurs, 0) != 0 || name.rfind("megalith::pretend::", 0) == 0) return "";
  name = name.substr(kOurs.size(), name.find('(') - kOurs.size());
  return name.find('<') == std::string::npos ? name : "";
}

// The function that holds an address. Looking one up takes a millisecond, so they are remembered. Only symbols that the
// program exports can be found: local functions have no name, and it is linked with -rdynamic.
std::string function_at(const void* address) {
  static std::mutex mutex;
  static auto* const known = new std::unordered_map<const void*, std::string>;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known->try_emplace(address);
  Dl_info info;
  if (is_new && ::dladdr(address, &info) != 0 && info.dli_sname != nullptr)
    entry->second = readable_name(info.dli_sname);
  return entry->second;
}

std::string place_of_caller() {
  void* frames[kMostFrames];
  const int num_frames = ::backtrace(frames, kMostFrames);
  std::string place, last;
  int named = 0;
  for (int i = 1; i < num_frames && named < kNamedFunctions; ++i) {
    // One less: a return address may belong to the next function.
    const std::string name = function_at(static_cast<char*>(frames[i]) - 1);
    if (name.empty() || name == last) continue;
    place += (named++ == 0 ? "" : " < ") + name;
    last = name;
  }
  return place.empty() ? "outside of megalith" : place;
}

class Ledger {
 public:
  static Ledger& instance() {
    static Ledger ledger;
    return ledger;
  }
  void add(const std::string& what) {
    std::string place = place_of_caller();
    const std::lock_guard lock(mutex_);
    ++counts_[{periods.load(), what, std::move(place)}];
  }
  std::vector<Wait> all() {
    const std::lock_guard lock(mutex_);
    std::vector<Wait> found;
    for (const auto& [key, count] : counts_) {
      found.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count});
    }
    return found;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    counts_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int64_t, std::string, std::string>, int64_t> counts_;
};

void report() {
  const char* path = std::getenv("PRETEND_WAITS");
  if (path == nullptr) return;
  std::ofstream file(path);
  for (const Wait& wait : Ledger::instance().all()) {
    file << wait.period << '\t' << wait.count << '\t' << wait.what << '\t' << wait.place << '\n';
  }
  // So that a reader sees steps without waits, too.
  file << periods.load() << "\t0\tend\t\n";
}

// Called within main(): a program that support/fork_server.c starts runs no handlers from before it.
void report_at_exit() { [[maybe_unused]] static const int registered = std::atexit(report); }

// Made at the start, so that it outlives all that may wait.
const bool is_watching = [] {
  Ledger::instance();
  const auto end = [](const at::RecordFunction& range, at::ObserverContext*) {
    if (std::string_view(range.name()) != "optimizer") return;
    ++periods;
    report_at_exit();
  };
  const auto start = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; };
  at::addGlobalCallback(at::RecordFunctionCallback(start, end).scopes({at::RecordScope::USER_SCOPE}));
  return true;
}();

}  // namespace

int64_t current_period() { return periods.load(); }

void note_wait(const std::string& what) {
  if (depth_of_work > 0) return;
  refuse_in_graph(current_device(), "the host waits: " + what);
  Ledger::instance().add(what);
  report_at_exit();
  note_host_sync(what);
}

std::vector<Wait> waits() { return Ledger::instance().all(); }
void forget_waits() { Ledger::instance().forget(); }

AtWork::AtWork() { ++depth_of_work; }
AtWork::~AtWork() { --depth_of_work; }
bool is_at_work() { return depth_of_work > 0; }

}  // namespace megalith::pretend
