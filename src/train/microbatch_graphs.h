// Captures a microbatch's forward and backward in one graph (device/graph.h), for kernels shorter than their launches.
//
// Two graphs: a step's first microbatch overwrites gradients, the others add. Varying values are copied to fixed
// addresses: tokens, labels and their weights, token numbers (dropout's key), the losses' factors. Host-side values
// (shapes, the factor of per-microbatch terms) form a graph's key. Learning rate, clipping and the decision to make the
// step stay outside.
//
// Gradients are complete only at the step's end: data-parallel reductions start there, not within backward.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/graph.h"
#include "models/model.h"

namespace megalith {

class MicrobatchGraphs {
 public:
  // A microbatch's forward and backward, leaving gradients in the parameters' buffers.
  using Body = std::function<ModelOutput(const ModelInput& input)>;

  // warmup_steps  at least one step without graphs: things made on first use must not be captured
  // The parameters outlive it. can_capture_graphs(device) holds.
  MicrobatchGraphs(at::Device device, std::vector<Parameter*> parameters, int64_t warmup_steps);
  ~MicrobatchGraphs();

  void begin_step();
  // One microbatch's sums, weights and observations, in their own memory. Every call's body must do the same; it runs
  // in steps without graphs and for capture.
  // input  without a cache and without documents
  ModelOutput run(const ModelInput& input, const Body& body);

 private:
  struct Captured;
  std::unique_ptr<Captured> capture(const ModelInput& input, const Body& body);
  void on_own_stream(const std::function<void()>& work);

  at::Device device_;
  std::vector<Parameter*> parameters_;
  int64_t warmup_steps_, num_steps_ = 0, num_microbatches_ = 0;
  c10::Stream stream_;
  std::map<std::string, std::unique_ptr<Captured>> captured_;
};

}  // namespace megalith
