#include "checkpoint/checkpoint_saver.h"

#include <limits>
#include <utility>

#include "core/strings.h"
#include "storage/object_mirror.h"

namespace megalith {
namespace {

// States exchanged; the largest decides.
constexpr double kWritten = 0, kWriting = 1, kFailed = 2;

}  // namespace

struct CheckpointSaver::Pending {
  CheckpointWriter writer;
  int64_t iteration = 0;
  bool is_passing = false;
  Stopwatch watch;
  std::atomic<bool> is_written{false};
  std::thread thread;

  ~Pending() {
    if (thread.joinable()) thread.join();
  }
};

CheckpointSaver::CheckpointSaver(const CheckpointOptions& options, const Groups& groups, Logger& log)
    : CheckpointSaver(local_path(options.save.value()), options.save_settings(), options.async_save, groups, log) {
  // Hosts have mirrors of their own.
  if (!is_object_url(*options.save)) check_shared_folder(root_, *groups.world);
}

CheckpointSaver::CheckpointSaver(std::filesystem::path root, SaveSettings settings, bool is_async, const Groups& groups,
                                 Logger& log)
    : root_(std::move(root)), settings_(std::move(settings)), is_async_(is_async), groups_(groups), log_(log) {}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::save(const CheckpointState& state, bool is_passing) {
  finish();
  const Stopwatch watch;
  if (!is_async_) {
    CheckpointWriter writer(root_, state, groups_, log_, settings_);
    writer.write();
    commit(writer, state.train.iteration, is_passing, watch);
    return;
  }
  pending_.reset(new Pending{.writer{root_, state, groups_, log_, settings_},
                             .iteration = state.train.iteration,
                             .is_passing = is_passing,
                             .watch = watch,
                             .thread = {}});
  pending_->writer.copy_to_host(buffers_);
  log_.info("copied the checkpoint of iteration {} in {}; writing it beside training", state.train.iteration,
            format_duration(watch.elapsed_s()));
  pending_->thread = std::thread([pending = pending_.get()] {
    pending->writer.write();
    pending->is_written.store(true, std::memory_order_release);
  });
}

void CheckpointSaver::poll() {
  if (!pending_) return;
  double stage = kWriting;
  if (pending_->is_written.load(std::memory_order_acquire)) {
    stage = pending_->writer.has_failed() ? kFailed : kWritten;
  }
  // finish() reports failures on all ranks.
  if (groups_.world->reduced(stage, ReduceOp::kMax, "checkpoint written") != kWriting) finish();
}

void CheckpointSaver::finish() {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  pending->thread.join();
  commit(pending->writer, pending->iteration, pending->is_passing, pending->watch);
}

void CheckpointSaver::commit(CheckpointWriter& writer, int64_t iteration, bool is_passing, const Stopwatch& watch) {
  const std::filesystem::path folder = writer.finish();
  const auto store = mirrored_store(root_, log_);
  const std::string place = store ? store->url().key(folder.filename().string()) : folder.string();
  log_.info("saved the checkpoint of iteration {} to {}{} in {}", iteration,
            store ? fmt::format("s3://{}/", store->url().bucket) : "", place,
            format_duration(watch.elapsed_s()));
  const std::optional<int64_t> passed = std::exchange(passing_, is_passing ? std::optional(iteration) : std::nullopt);
  if (passed && *passed != iteration && groups_.world->is_first()) {
    constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
    apply_retention(root_, iteration, passed,
                    {.keep_last = std::nullopt, .retain_interval = kNone, .kept = settings_.retention.kept}, log_,
                    settings_.before_step);
  }
  if (!replaces_earlier_run_) return;
  replaces_earlier_run_ = false;
  if (groups_.world->is_first()) remove_other_checkpoints(root_, iteration, log_);
}

}  // namespace megalith
