// Forward and backward of a microbatch as one graph (device/graph.h), for models whose kernels are shorter than their
// launches.
//
// There are two graphs: a step's first microbatch writes the gradients, all others add to them. What changes from
// microbatch to microbatch is copied to tensors whose addresses stay: tokens, labels and their weights, the tokens'
// numbers, which key dropout, and the losses' factors. What the host knows besides (shapes, the factor of terms that
// are defined per microbatch) is the key of a graph: another key is another graph. The learning rate, clipping and
// whether the step is made act behind the microbatches and are in no graph.
//
// A parameter's gradient counts as complete when the step ends: reductions over data-parallel ranks start there, not
// within backward.
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
  // Forward and backward of a microbatch. Afterwards its gradients are in the parameters' buffers.
  using Body = std::function<ModelOutput(const ModelInput& input)>;

  // warmup_steps  steps that run without graphs, at least one: what is made at the first use is made outside of a graph
  // The parameters outlive it. can_capture_graphs(device) holds.
  MicrobatchGraphs(at::Device device, std::vector<Parameter*> parameters, int64_t warmup_steps);
  ~MicrobatchGraphs();

  void begin_step();
  // The terms' sums and weights and the observations of one microbatch, in memory of their own. Every call is given a
  // body that does the same; it is called in steps without graphs and when a graph is captured.
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
  std::map<std::string, std::unique_ptr<Captured>> captured_;  // by key
};

}  // namespace megalith
