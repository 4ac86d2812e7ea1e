// The machine that a plan is for: rates of one kind of chip and of its links, and how many there are.
//
// Rates come from configs/clusters.yaml, or from a file of that form (bench calibrate writes one). Data-sheet numbers
// stay as they are; three fitted shares say how much of them training reaches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

class OptionVisitor;

struct ChipRates {
  std::string name;
  double tflops = 0, fp8_tflops = 0, fp32_tflops = 0;  // dense; 0: as tflops
  double memory_gib = 0, memory_tb_per_s = 0;
  int64_t gpus_per_node = 8;                          // joined by the fast link
  double link_gb_per_s = 0, network_gb_per_s = 0;     // of a GPU, each direction, as collectives reach
  double link_us = 5, network_us = 12;                // a step of a collective
  // Collectives that add, over either; 0: as the others. Gloo's are slower, and its reduce_scatter adds everything.
  double all_reduce_gb_per_s = 0, reduce_scatter_gb_per_s = 0;
  double hidden_share = 0.61;                         // of a collective's time that computation beside it loses
  double operator_us = 5;                             // of the host, to launch an operator
  int64_t units = 0;                                  // that take a product's tiles: SMs, CUs; 0: no tiles
  // Of what products reach: 560 and 500 of 760 TFLOP/s on an H200.
  double attention_share = 0.74, attention_backward_share = 0.66;
  double product_share = 0.7, fp8_share = 0.6, memory_share = 0.8;  // fitted
  // Ranks that take turns on a processor: the rates are of a rank while all of them work.
  double ranks_per_core = 1;
  // A chip's share of its host's memory, and the speed at which either moves what is kept there.
  double host_memory_gib = 240, host_gb_per_s = 50;
  double context_gib = 1.5;  // a rank's memory beside tensors: contexts, communicators, workspaces
  std::vector<std::string> sources;

  void visit(OptionVisitor& v);
};

struct Cluster {
  ChipRates chip;
  int64_t nodes = 1, gpus_per_node = 8;
  std::filesystem::path file;  // of the rates

  int64_t world_size() const { return nodes * gpus_per_node; }
  std::string text() const;  // "128 h200 in 16 nodes"
};

// "h200:8x16": 16 nodes of 8 GPUs; "h200:8": one node; or FILE.yaml in place of the name, a file with one chip.
// UserErrors for unknown chips, keys and values.
Cluster read_cluster(const std::string& text, const std::filesystem::path& config_root);

// The shipped rates of a chip by its name in any case, if known.
std::optional<ChipRates> find_chip(const std::string& name, const std::filesystem::path& config_root);

// The chips of a file of rates, in its order.
std::vector<ChipRates> load_chips(const std::filesystem::path& file);

// A file of rates with this chip.
std::string chip_yaml(const ChipRates& chip);

}  // namespace megalith
