#include "metrics/tensorboard.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "metrics/tfrecord.h"

namespace megalith {
namespace {

double wall_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads files by name: the ten-digit time comes first.
std::unique_ptr<AppendFile> create_event_file(const std::filesystem::path& folder, Logger& log) {
  const std::string name =
      fmt::format("events.out.tfevents.{:010d}.{}.{}", static_cast<int64_t>(wall_time_s()), host_name(), ::getpid());
  std::filesystem::path path = folder / name;
  std::error_code ignored;
  for (int again = 1; std::filesystem::exists(path, ignored); ++again)
    path = folder / fmt::format("{}.{}", name, again);
  return std::make_unique<AppendFile>(path, "tensorboard_dir", AppendFile::Open::kCreateNew, log);
}

}  // namespace

TensorboardSink::TensorboardSink(const LogOptions& options, Logger& log)
    : options_(options), file_(create_event_file(*options.tensorboard_dir, log)) {
  file_->append(tfrecord(version_event(wall_time_s())), "the file's version");
}

void TensorboardSink::on_step(const StepRecord& record) {
  if (record.iteration % options_.tensorboard_log_interval != 0) return;
  const TaggedScalars scalars = tagged_scalars(record, options_);
  write(record.iteration, record.consumed_samples, scalars.both, scalars.over_iterations);
}

void TensorboardSink::on_validation(const ValidationRecord& record) {
  write(record.iteration, record.consumed_samples, tagged_scalars(record, options_), {});
}

void TensorboardSink::on_generation(const GenerationRecord& record) {
  // TensorBoard renders Markdown: an indent of four is verbatim.
  std::string text = "    ";
  for (const char c : record.prompt + record.continuation) {
    text += c;
    if (c == '\n') text += "    ";
  }
  file_->append(tfrecord(text_event(wall_time_s(), record.iteration, "sample", text)),
                fmt::format("the sample of iteration {}", record.iteration));
}

void TensorboardSink::on_picture(const PictureRecord& record) {
  file_->append(
      tfrecord(image_event(wall_time_s(), record.iteration, "sample", record.png, record.height, record.width)),
      fmt::format("the picture of iteration {}", record.iteration));
}

void TensorboardSink::on_event(const EventRecord& record) {
  file_->append(tfrecord(text_event(wall_time_s(), record.iteration, record.kind, "    " + record.text)),
                fmt::format("the event of iteration {}", record.iteration));
}

void TensorboardSink::write(int64_t iteration, int64_t consumed_samples, const Scalars& both,
                            const Scalars& over_iterations) {
  const double now = wall_time_s();
  Scalars by_iteration = both, by_samples = both;
  by_iteration.insert(by_iteration.end(), over_iterations.begin(), over_iterations.end());
  for (auto& [tag, value] : by_samples) tag += " vs samples";
  // One write: readers see both or none.
  file_->append(
      tfrecord(scalar_event(now, iteration, by_iteration)) + tfrecord(scalar_event(now, consumed_samples, by_samples)),
      fmt::format("what belongs to iteration {}", iteration));
}

}  // namespace megalith
