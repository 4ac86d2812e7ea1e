// Runs readers on damaged files for a bounded time; see target.h.
//
// Inputs are made from good ones by seeded damage. The compiler's hooks (-fsanitize-coverage=trace-pc, coverage.cc)
// say which code an input reached; one that reached something new joins those that are damaged further. That is what
// libFuzzer does, for compilers that come without it. Where a reader promises bounds, the dearest inputs are changed
// further, too, as PerfFuzz does (Lemieux et al. 2018).
//
// usage: fuzz_readers [--target NAME]… [--seconds S] [--runs N] [--seed N] [--corpus FOLDER] [--keep N] [--input FILE]
//                     [--save FOLDER] [--list]
//   --seconds  for each target
//   --runs     of each target, in whatever time they take
//   --corpus   FOLDER/TARGET holds inputs that earlier runs have found to lead deep; they are tried first
//   --keep     so many new ones of each target join them, those that reached most
//   --input    runs one target on only this file, which a failure left
//   --save     where the input of a failure is written (the current folder)
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "fuzz/coverage.h"
#include "fuzz/mutate.h"
#include "fuzz/target.h"

namespace megalith::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kMostSecondsAnInput = 10;
constexpr size_t kMostInputBytes = size_t{1} << 16;
constexpr size_t kMostInputs = 1000;          // of each kind
constexpr size_t kMostCorpusBytes = 1 << 10;  // of an input that joins the corpus: many are read at every start

// How often an input of the dearest is changed further, of targets with costs.
constexpr size_t kDearestEvery = 2;

// What the callbacks of a dying process need to know.
struct Current {
  const Scratch* scratch = nullptr;
  std::string target, save_path;
  std::string input;
  bool is_running = false;
};
Current current;

void save_input() {
  if (!std::exchange(current.is_running, false)) return;
  const int file = ::open(current.save_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  size_t done = 0;
  while (file >= 0 && done < current.input.size()) {
    const ssize_t written = ::write(file, current.input.data() + done, current.input.size() - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  if (file >= 0) ::close(file);
  std::fprintf(stderr, "fuzz: %s failed; its input: fuzz_readers --target %s --input %s\n", current.target.c_str(),
               current.target.c_str(), current.save_path.c_str());
}

void on_death() {
  save_input();
  if (current.scratch != nullptr) current.scratch->remove();
}

void on_alarm(int) {
  std::fprintf(stderr, "fuzz: an input of %s takes more than %u seconds\n", current.target.c_str(),
               kMostSecondsAnInput);
  on_death();
  ::_exit(1);
}

// What UndefinedBehaviorSanitizer found; GCC's is a library of its own, which knows nothing of the callback above.
void on_abort(int) {
  on_death();
  ::_exit(1);
}

struct Outcome {
  bool was_used = false;
  std::string refusal;
  std::vector<double> costs;
};

Outcome run_one(const Target& target, std::string input) {
  current.input = std::move(input);
  current.is_running = true;
  ::alarm(kMostSecondsAnInput);
  Outcome outcome;
  try {
    target.run(current.input);
    outcome.was_used = true;
  } catch (const UserError& error) {
    outcome.refusal = error.message();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: %s: neither used nor refused: %s\n", target.name.c_str(), error.what());
    on_death();
    ::_exit(1);
  }
  if (target.costs) outcome.costs = target.costs();
  for (size_t i = 0; i < outcome.costs.size(); ++i) {
    if (outcome.costs[i] <= 1) continue;
    std::fprintf(stderr, "fuzz: an input of %s costs %.2f times what it may (cost %zu)\n", target.name.c_str(),
                 outcome.costs[i], i);
    on_death();
    ::_exit(1);
  }
  ::alarm(0);
  current.is_running = false;
  return outcome;
}

// The dearest inputs so far, one for each kind of cost.
class Dearest {
 public:
  void offer(const std::string& input, const std::vector<double>& costs) {
    costs_.resize(costs.size());
    inputs_.resize(costs.size());
    for (size_t i = 0; i < costs.size(); ++i) {
      if (costs[i] <= costs_[i]) continue;
      costs_[i] = costs[i];
      inputs_[i] = input;
    }
  }
  bool is_empty() const { return inputs_.empty(); }
  const std::string& choose(Random& random) const { return inputs_[below(inputs_.size(), random)]; }
  std::string described() const {
    return costs_.empty() ? "" : fmt::format(", costs at most {:.2f} of what they may", fmt::join(costs_, ", "));
  }

 private:
  std::vector<double> costs_;
  std::vector<std::string> inputs_;
};

// Inputs that reached something new. Those that could be used lead deeper; those that were refused are more.
struct Kept {
  std::vector<std::string> used, refused;

  void keep(std::string input, bool was_used, Random& random) {
    std::vector<std::string>& list = was_used ? used : refused;
    if (list.size() < kMostInputs) {
      list.push_back(std::move(input));
    } else {
      list[below(list.size(), random)] = std::move(input);
    }
  }
};

std::string damaged(const Target& target, const Kept& kept, const Dearest& dearest, Random& random) {
  const std::vector<std::string>& inputs = kept.refused.empty() || random() % 4 != 0 ? kept.used : kept.refused;
  const bool takes_dear = !dearest.is_empty() && random() % kDearestEvery == 0;
  const std::string& chosen = takes_dear ? dearest.choose(random) : inputs[below(inputs.size(), random)];
  std::string input;
  if (random() % 16 == 0) {  // the beginning of one, the end of another
    const std::string& other = inputs[below(inputs.size(), random)];
    input = chosen.substr(0, below(chosen.size() + 1, random)) + other.substr(below(other.size() + 1, random));
  } else if (target.mutate && random() % 3 != 0) {
    input = target.mutate(chosen, random);
  } else {
    input = damaged_bytes(chosen, target.words, random);
  }
  if (input.size() > kMostInputBytes) input.resize(kMostInputBytes);
  return input;
}

struct Limits {
  double seconds = 3;
  int64_t runs = 0;  // above 0: instead of the time
  uint64_t seed = 1;
  std::string corpus;  // folder; empty: none
  size_t num_kept = 0;
};

std::string read_input(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError("fuzz_readers: cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Inputs of a corpus, in the order of their names.
std::vector<std::string> read_corpus(const fs::path& folder) {
  std::vector<fs::path> paths;
  if (fs::exists(folder)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const fs::path& path : paths) inputs.push_back(read_input(path));
  return inputs;
}

// Inputs that reached new code, and how many places each.
using Found = std::vector<std::pair<size_t, std::string>>;

void write_corpus(const fs::path& folder, Found found, size_t most) {
  if (found.empty() || most == 0) return;
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  found.resize(std::min(found.size(), most));
  fs::create_directories(folder);
  for (const auto& [num_places, input] : found) {
    const std::string name = fmt::format("{:016x}", std::hash<std::string>{}(input));
    std::ofstream(folder / name, std::ios::binary).write(input.data(), static_cast<std::streamsize>(input.size()));
  }
}

void fuzz(const Target& target, const Limits& limits, const std::string& save_folder) {
  current.target = target.name;
  current.save_path = (fs::path(save_folder) / ("fuzz_" + target.name + ".failure")).string();
  Random random(limits.seed);
  Coverage coverage;
  Kept kept;
  Found found;
  Dearest dearest;
  for (const std::string& seed_input : target.seeds) {
    const Outcome outcome = run_one(target, seed_input);
    if (!outcome.was_used) {
      throw UserError(fmt::format("{} refuses its good input {}: {}", target.name, kept.used.size(), outcome.refusal));
    }
    coverage.take_new();
    dearest.offer(seed_input, outcome.costs);
    kept.used.push_back(seed_input);
  }
  int64_t num_used = 0, num_refused = 0;
  if (!limits.corpus.empty()) {
    for (std::string& input : read_corpus(fs::path(limits.corpus) / target.name)) {
      const Outcome outcome = run_one(target, std::move(input));
      const bool was_used = outcome.was_used;
      dearest.offer(current.input, outcome.costs);
      ++(was_used ? num_used : num_refused);
      if (coverage.take_new() > 0) kept.keep(current.input, was_used, random);
    }
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  while (limits.runs > 0 ? num_used + num_refused < limits.runs : elapsed() < limits.seconds) {
    const Outcome outcome = run_one(target, damaged(target, kept, dearest, random));
    const bool was_used = outcome.was_used;
    dearest.offer(current.input, outcome.costs);
    ++(was_used ? num_used : num_refused);
    const size_t num_new = coverage.take_new();
    if (num_new == 0) continue;
    if (current.input.size() <= kMostCorpusBytes) found.emplace_back(num_new, current.input);
    kept.keep(current.input, was_used, random);
  }
  write_corpus(fs::path(limits.corpus) / target.name, std::move(found), limits.num_kept);
  std::printf("%-20s %7lld used %8lld refused %6zu places in code %4zu + %4zu inputs kept%s\n", target.name.c_str(),
              static_cast<long long>(num_used), static_cast<long long>(num_refused), coverage.num_places(),
              kept.used.size(), kept.refused.size(), dearest.described().c_str());
  std::fflush(stdout);
}

int run(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  std::string input, save_folder = ".";
  Limits limits;
  bool only_lists = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--list") {
      only_lists = true;
      continue;
    }
    if (i + 1 == arguments.size()) throw UserError("fuzz_readers: " + flag + " needs a value");
    const std::string& value = arguments[++i];
    if (flag == "--target") {
      names.push_back(value);
    } else if (flag == "--seconds") {
      limits.seconds = std::stod(value);
    } else if (flag == "--runs") {
      limits.runs = std::stoll(value);
    } else if (flag == "--corpus") {
      limits.corpus = value;
    } else if (flag == "--keep") {
      limits.num_kept = std::stoull(value);
    } else if (flag == "--seed") {
      limits.seed = std::stoull(value);
    } else if (flag == "--input") {
      input = value;
    } else if (flag == "--save") {
      save_folder = value;
    } else {
      throw UserError("fuzz_readers: unknown flag " + flag);
    }
  }
  if (limits.num_kept > 0 && limits.corpus.empty()) throw UserError("fuzz_readers: --keep needs --corpus");
  const Scratch scratch;
  current.scratch = &scratch;
  __sanitizer_set_death_callback(on_death);
  ::signal(SIGALRM, on_alarm);
  ::signal(SIGABRT, on_abort);
  std::vector<Target> targets;
  for (auto make :
       {tokenizer_targets, data_targets, sft_targets, configuration_targets, picture_targets, checkpoint_targets}) {
    for (Target& target : make(scratch)) targets.push_back(std::move(target));
  }
  const size_t num_readers = targets.size();
  for (Target& target : planted_targets(scratch)) targets.push_back(std::move(target));
  if (!only_lists) {
    std::printf("seed %llu, %s a target\n", static_cast<unsigned long long>(limits.seed),
                (limits.runs > 0 ? fmt::format("{} runs", limits.runs) : fmt::format("{} s", limits.seconds)).c_str());
    std::fflush(stdout);
  }
  size_t num_run = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[i];
    // Planted faults only by name.
    if (names.empty() ? i >= num_readers : std::find(names.begin(), names.end(), target.name) == names.end()) continue;
    ++num_run;
    if (only_lists) {
      std::printf("%s\n", target.name.c_str());
    } else if (!input.empty()) {
      current.target = target.name;
      current.save_path = "/dev/null";
      const Outcome outcome = run_one(target, read_input(input));
      std::printf("%s: %s\n", target.name.c_str(), outcome.was_used ? "used" : outcome.refusal.c_str());
      if (!outcome.costs.empty())
        std::printf("%s\n", fmt::format("costs {:.3f}", fmt::join(outcome.costs, ", ")).c_str());
    } else {
      fuzz(target, limits, save_folder);
    }
  }
  if (num_run < std::max<size_t>(names.size(), 1)) throw UserError("fuzz_readers: no such target; --list names them");
  current.scratch = nullptr;
  return 0;
}

}  // namespace
}  // namespace megalith::fuzz

// An allocation of ours (operator new) beyond this is a finding: a file of a few kilobytes asks for none. Libraries in
// C are told that there is no memory, which they must bear: zstd reserves the window that a stream declares, up to
// 2 GiB for corpora of --long=31. The shadow of threads that a library left running is not our concern, so leaks are
// not looked for.
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=512:allocator_may_return_null=1:detect_leaks=0:detect_stack_use_after_return=1:"
         "strict_string_checks=1:hard_rss_limit_mb=4096";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1:abort_on_error=1"; }

int main(int argc, char** argv) {
  try {
    return megalith::fuzz::run({argv + 1, argv + argc});
  } catch (const megalith::UserError& error) {
    std::fprintf(stderr, "error: %s\n", error.message().c_str());
    return 2;
  }
}
