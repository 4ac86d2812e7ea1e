// Traces of training steps for Perfetto (ui.perfetto.dev), chrome://tracing and TensorBoard: every operator with its
// shapes, the kernels of a GPU, the parts of a step as named ranges, and each collective from issue to wait() under the
// name of the tensor it moves. Recorded by kineto, PyTorch's profiler.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/groups.h"
#include "config/option.h"
#include "core/error.h"
#include "core/log.h"

namespace megalith {

struct ProfileOptions {
  bool profile = false;
  int64_t profile_step_start = 10;  // iterations that are done when the trace begins
  int64_t profile_step_end = 12;    // … when it ends: so it holds iterations 11 and 12
  std::vector<int64_t> profile_ranks = {0};
  std::optional<std::string> profile_dir;
  bool torch_profiler_record_shapes = true;
  bool dump_pp_data = false;
  std::optional<std::string> dump_pp_data_dir;

  void visit(OptionVisitor& v);
  // Where traces go: profile_dir, else tensorboard_dir, else "profile" in the current folder.
  std::filesystem::path folder(const std::optional<std::string>& tensorboard_dir) const;
};

std::vector<UserError> check_profile_options(const ProfileOptions& options);

// Traces the iterations that the options name, on the ranks that they name; does nothing elsewhere. One at a time in a
// process: kineto's recording is the process's.
class Profiler {
 public:
  // Makes the folder when this rank will trace. UserError when nothing can be written there. The groups' collectives
  // are watched while a trace is recorded; the groups outlive the profiler.
  Profiler(const ProfileOptions& options, std::filesystem::path folder, const Groups& groups, c10::Device device,
           Logger& log);
  ~Profiler();  // writes a trace under way
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Around each iteration, counted from 1; on the thread that trains. The trace has it as a range "ProfilerStep#11",
  // the name that TensorBoard's plugin and other readers look for. A trace that cannot be written costs a warning.
  void begin_iteration(int64_t iteration);
  void end_iteration(int64_t iteration);
  // Ends a trace under way, where a run stops before profile_step_end.
  void finish();

  bool is_recording() const { return trace_ != nullptr; }
  // The trace that was written last; empty before.
  const std::filesystem::path& written() const { return written_; }

 private:
  struct Trace;

  ProfileOptions options_;
  std::filesystem::path folder_;
  const Groups& groups_;
  c10::Device device_;
  Logger& log_;
  bool is_traced_ = false;        // this rank, in an iteration to come
  std::shared_ptr<Trace> trace_;  // shared with the hooks of collectives that nobody has waited for
  std::filesystem::path written_;
};

// A named range in the trace for as long as it lives; free of cost when none is recorded. Ranges nest.
class ProfileRange {
 public:
  explicit ProfileRange(std::string_view name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  struct Record;
  std::unique_ptr<Record> record_;  // null when nothing is recorded
};

}  // namespace megalith
