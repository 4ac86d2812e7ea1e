// AMD's benchmarks: the models of its PyTorch training scripts (-m), and the tags of its models.json (--model_repo).
//
// A tag of another backend's benchmark is a run of that backend's scripts: the table has the variables that they would
// be called with, so such a benchmark and its script have one meaning.
// Both are tables of config/dialects/.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compat/front_end.h"

namespace megalith {

// What the setup makes of bghira/pseudo-camera-10k, in the current folder.
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
  int pretrain_batch = 0;  // samples of a GPU; 0: no such benchmark
  int finetune_batch = 0;
  int seq_length = 0;
  std::string repo;       // on the hub
  std::string chat_repo;  // where conversations are learned, when that is another

  bool has_pictures() const { return name == "Flux"; }
};

struct BenchmarkTag {
  std::string tag;
  std::string model;  // as in the names of files
  BenchmarkBackend backend;
  FrontEnd front_end;  // whose script runs it
  // Assignments of the script, and behind them the trainer's options.
  std::vector<std::string> variables, options;
};

// What a plan is measured for.
struct BenchmarkRun {
  BenchmarkBackend backend = BenchmarkBackend::kTorchtitan;
  std::string model, mode, precision;  // "Llama-3.1-8B", "pretrain", "BF16"
  std::string log, results;            // files
  std::string made_rows = {};          // a file of rows that is made before the run where it is not there
};

std::span<const BenchmarkModel> benchmark_models();
std::span<const BenchmarkTag> benchmark_tags();
// Without regard to case; null when there is none.
const BenchmarkModel* find_benchmark_model(std::string_view name);
const BenchmarkTag* find_benchmark_tag(std::string_view tag);

// "Llama-3.1-8B, Llama-3.1-70B, …", and a sentence with the nearest model or tag.
std::string benchmark_model_names();
std::string nearest_benchmark(const std::string& name);

}  // namespace megalith
