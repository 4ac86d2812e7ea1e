// Traces of training steps for Perfetto (ui.perfetto.dev), chrome://tracing and TensorBoard: operators with shapes, GPU
// kernels, named ranges, collectives from issue to wait() under their tensors' names. Recorded by kineto, PyTorch's
// profiler.
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
  int64_t profile_step_start = 10;  // iterations done before the trace
  int64_t profile_step_end = 12;    // … at its end: iterations 11 and 12
  std::vector<int64_t> profile_ranks = {0};
  std::optional<std::string> profile_dir;
  bool torch_profiler_record_shapes = true;
  bool dump_pp_data = false;
  std::optional<std::string> dump_pp_data_dir;

  void visit(OptionVisitor& v);
  // profile_dir, else tensorboard_dir, else "profile" in the current folder.
  std::filesystem::path folder(const std::optional<std::string>& tensorboard_dir) const;
};

std::vector<UserError> check_profile_options(const ProfileOptions& options);

// Traces the given iterations on the given ranks. One at a time: kineto records the whole process.
class Profiler {
 public:
  // Creates the folder on tracing ranks. UserError if not writable. Watches the groups' collectives while recording;
  // groups outlive the profiler.
  Profiler(const ProfileOptions& options, std::filesystem::path folder, const Groups& groups, c10::Device device,
           Logger& log);
  ~Profiler();  // writes an unfinished trace
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Call around each iteration, from 1, on the training thread. The trace has a range "ProfilerStep#11", which
  // TensorBoard's plugin expects. A failed write costs a warning.
  void begin_iteration(int64_t iteration);
  void end_iteration(int64_t iteration);
  // Ends an unfinished trace when a run stops early.
  void finish();

  bool is_recording() const { return trace_ != nullptr; }
  // The last written trace; empty before.
  const std::filesystem::path& written() const { return written_; }

 private:
  struct Trace;

  ProfileOptions options_;
  std::filesystem::path folder_;
  const Groups& groups_;
  c10::Device device_;
  Logger& log_;
  bool is_traced_ = false;        // this rank, in a later iteration
  std::shared_ptr<Trace> trace_;  // shared with hooks of collectives not yet waited for
  std::filesystem::path written_;
};

// A named range in the trace during its lifetime; free when not recording. Ranges nest.
class ProfileRange {
 public:
  explicit ProfileRange(std::string_view name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  struct Record;
  std::unique_ptr<Record> record_;  // null when not recording
};

}  // namespace megalith
