// One case of a CVS file, selected and parsed into numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compat/cvs_config.h"
#include "core/error.h"

namespace megalith {

// Facts about the run, known before its case is chosen.
struct CvsFacts {
  std::string device;  // "AMD Instinct MI300X VF, …"; empty when unknown
  std::optional<int64_t> num_layers, hidden_size;
};

struct CvsCaseRequest {
  std::optional<std::string> name;  // MODE/MODEL/GPU; a sweep's run alone is enough
  bool is_launch = false;           // require the keys that only starting a run needs
  bool scale_batch = false;         // batch_size/4 x nnodes
  CvsFacts facts;
};

// A bound of result_dict or of a threshold file.
struct CvsBound {
  std::string key;
  double value = 0;
  std::optional<CvsLimit> limit = {};  // none in result_dict: the measure tells

  bool is_judged(bool enforces) const { return enforces && !(limit && limit->kind == CvsLimitKind::kInfo); }
  // is_most: what a bound without a limit is. `values`: of all measures, for a ratio.
  bool holds(double measured, bool is_most, const std::map<std::string, double>& values) const;
  std::string expected(bool is_most, const std::string& unit) const;  // "at most 25000.0 ms"
};

// For people: "6900.0", "0.85".
std::string cvs_number(double value);

struct CvsCase {
  std::string mode, model, gpu;
  std::string trainer = "megatron";  // or torchtitan
  std::optional<CvsSweep> sweep;     // the file's, if the case is a run of one
  bool is_distributed = false;       // one run over all nodes; else one per node
  int64_t nnodes = 1;
  int64_t training_iterations = 0;
  std::string tokenizer_model, model_size, precision;
  int64_t batch_size = 0, micro_batch_size = 0, sequence_length = 0;
  int64_t tensor_parallelism = 1, pipeline_parallelism = 1;
  bool recompute = false, fsdp = false, is_fp8 = false, mock_data = true;
  bool verify_network_errors = false;  // compare error counters before and after a run started here
  std::vector<CvsBound> bounds;
  std::vector<std::string> notes;  // choices made for this case, worth telling

  std::string name() const { return model.empty() ? mode : mode + "/" + model + "/" + gpu; }
  int64_t num_runs() const { return is_distributed ? 1 : nnodes; }
  int64_t nodes_of_run() const { return is_distributed ? nnodes : 1; }
  const CvsBound* find_bound(const std::string& key) const;
  // Ranks that share a model's tensors: FSDP replaces tensor parallelism.
  int64_t tensor_ranks() const { return fsdp ? 1 : tensor_parallelism; }
};

// UserErrors with all that is wrong; for an unknown or ambiguous case they list the file's cases.
CvsCase resolve_cvs_case(const CvsConfig& config, const CvsCaseRequest& request);

}  // namespace megalith
