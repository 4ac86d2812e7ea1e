// AMD's benchmarks: the models of its PyTorch training scripts (-m), and the tags of its models.json (--model_repo).
// Both are tables of config/dialects/.
//
// A tag of another backend's benchmark runs that backend's script; the table has the variables to call it with.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compat/front_end.h"

namespace megalith {

// Made by the setup from bghira/pseudo-camera-10k, in the current folder.
inline constexpr std::string_view kPreparedPictures = "pseudo-camera-10k";

enum class BenchmarkBackend {
  kTorchtitan,  // figures from the lines of log_style torchtitan
  kTorchtune,   // from those of log_style torchtune
  kMegatron,    // from the summary at the end of the log
  kPrimus,      // from the iteration lines
  kFlux,        // pictures: from the lines of log_style pictures
};

// A model of the PyTorch scripts.
struct BenchmarkModel {
  std::string name;    // of -m, and in the names of files
  std::string preset;  // of configs/models
  int pretrain_batch = 0;  // samples per GPU; 0: no such benchmark
  int finetune_batch = 0;
  int seq_length = 0;
  std::string repo;       // on the hub
  std::string chat_repo;  // for training on conversations, if another

  bool has_pictures() const { return name == "Flux"; }
};

struct BenchmarkTag {
  std::string tag;
  std::string model;  // as in the names of files
  BenchmarkBackend backend;
  FrontEnd front_end;  // the script that runs it
  // Assignments of the script, followed by options of the trainer.
  std::vector<std::string> variables, options;
};

// One benchmark: what it measures, and its files.
struct BenchmarkRun {
  BenchmarkBackend backend = BenchmarkBackend::kTorchtitan;
  std::string model, mode, precision;  // "Llama-3.1-8B", "pretrain", "BF16"
  std::string log, results;            // files
  std::string made_rows = {};          // a file of rows made before the run if missing
};

std::span<const BenchmarkModel> benchmark_models();
std::span<const BenchmarkTag> benchmark_tags();
// Case-insensitive; null if unknown.
const BenchmarkModel* find_benchmark_model(std::string_view name);
const BenchmarkTag* find_benchmark_tag(std::string_view tag);

// "Llama-3.1-8B, Llama-3.1-70B, …", and a sentence with the nearest model or tag.
std::string benchmark_model_names();
std::string nearest_benchmark(const std::string& name);

}  // namespace megalith
