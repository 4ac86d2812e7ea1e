#include "metrics/json_console.h"

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "metrics/interval.h"
#include "metrics/jsonl.h"

namespace megalith {

void JsonConsole::on_step(const StepRecord& record) {
  run_.add(record);
  if (is_line_due(record, log_interval_)) write_(json_line(record) + "\n");
}

void JsonConsole::on_validation(const ValidationRecord& record) { write_(json_line(record) + "\n"); }

void JsonConsole::on_event(const EventRecord& record) { write_(json_line(record) + "\n"); }

void JsonConsole::on_generation(const GenerationRecord& record) {
  OrderedJson object;
  object["kind"] = "text";
  object["iteration"] = record.iteration;
  object["prompt"] = record.prompt;
  object["continuation"] = record.continuation;
  write_(dump_json(object) + "\n");
}

void JsonConsole::on_picture(const PictureRecord& record) {
  OrderedJson object;
  object["kind"] = "picture";
  object["iteration"] = record.iteration;
  object["prompt"] = record.prompt;
  object["height"] = record.height;
  object["width"] = record.width;
  if (record.file) object["file"] = *record.file;
  write_(dump_json(object) + "\n");
}

void JsonConsole::on_end() {
  const RunSummary summary = run_.summary();
  if (summary.num_steps == 0) return;
  OrderedJson object;
  object["kind"] = "summary";
  object["num_steps"] = summary.num_steps;
  object["elapsed_ms"] = summary.elapsed_ms;
  object["tokens_per_s_per_device"] = summary.tokens_per_s_per_device;
  object["tflops_per_device"] = summary.tflops_per_device;
  object["causal_tflops_per_device"] = summary.causal_tflops_per_device;
  object["memory_used_fraction"] = summary.memory_used_fraction;
  write_(dump_json(object) + "\n");
}

}  // namespace megalith
