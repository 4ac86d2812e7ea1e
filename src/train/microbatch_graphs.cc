#include "train/microbatch_graphs.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/error.h"
#include "device/stream.h"
#include "device/transfer.h"
#include "nn/parameter.h"
#include "train/input_tensors.h"

namespace megalith {
namespace {

// Beyond this number of keys older graphs are unlikely to recur: a ramping batch, a changing loss scale.
constexpr size_t kMostGraphs = 8;

bool says_nothing(const ops::MaskRuns* runs) {
  return runs == nullptr ||
         (runs->queries.empty() && runs->keys.empty() && runs->documents.empty() && runs->lengths.empty());
}

std::string key_of(const ModelInput& input, bool is_first) {
  const ForwardContext& context = input.context;
  const ops::AttentionMask& mask = context.mask;
  std::string key =
      fmt::format("first {} b {} s {} row {} training {} scale {:a} per microbatch {:a} causal {} window {}", is_first,
                  context.b, context.s, context.row_length, context.is_training, context.objective_scale,
                  input.per_microbatch, mask.is_causal, mask.window);
  for_each_tensor(input, [&](std::string_view name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    key += fmt::format(" {} {} {} {}", name, c10::toString(tensor.scalar_type()), tensor.sizes(), tensor.strides());
  });
  return key;
}

// A copy with its own uninitialised tensors on the device.
ModelInput with_own_tensors(const ModelInput& input, at::Device device) {
  ModelInput own = input;
  for_each_tensor(own, [&](std::string_view name, at::Tensor& tensor) {
    if (!tensor.defined()) return;
    MEGALITH_CHECK(tensor.is_non_overlapping_and_dense(), "{} is no tensor that can be copied to", name);
    tensor = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
  });
  return own;
}

void copy_tensors(ModelInput& to, const ModelInput& from, at::Device device) {
  std::vector<at::Tensor> sources;
  for_each_tensor(from, [&](std::string_view, const at::Tensor& tensor) { sources.push_back(tensor); });
  size_t next = 0;
  for_each_tensor(to, [&](std::string_view, at::Tensor& tensor) {
    const at::Tensor& source = sources.at(next++);
    if (tensor.defined()) tensor.copy_(sent_to(source, device));
  });
}

// The output for a step's statistics, detached.
ModelOutput told(const ModelOutput& output) {
  ModelOutput own;
  for (const LossTerm& term : output.terms) {
    own.terms.push_back({.name = term.name, .sum = term.sum, .weight = term.weight, .objective = {}});
  }
  own.observations = output.observations;
  return own;
}

// A copy: the next replay overwrites the graph's results.
ModelOutput copy_of(const ModelOutput& output) {
  ModelOutput copy = output;
  for (LossTerm& term : copy.terms) {
    term.sum = term.sum.clone();
    term.weight = term.weight.clone();
  }
  for (Observation& observation : copy.observations) observation.values = observation.values.clone();
  return copy;
}

}  // namespace

struct MicrobatchGraphs::Captured {
  ModelInput input;
  DeviceGraph graph;
  ModelOutput output;
  std::vector<Parameter*> first_written;  // gradients first written by this microbatch
};

MicrobatchGraphs::MicrobatchGraphs(at::Device device, std::vector<Parameter*> parameters, int64_t warmup_steps)
    : device_(device), parameters_(std::move(parameters)), warmup_steps_(warmup_steps), stream_(side_stream(device)) {
  MEGALITH_CHECK(warmup_steps >= 1, "{} steps without graphs", warmup_steps);
}

MicrobatchGraphs::~MicrobatchGraphs() = default;

void MicrobatchGraphs::begin_step() {
  ++num_steps_;
  num_microbatches_ = 0;
}

ModelOutput MicrobatchGraphs::run(const ModelInput& input, const Body& body) {
  MEGALITH_CHECK(input.context.cache == nullptr && says_nothing(input.context.mask.runs.get()),
                 "a graph of a microbatch with documents or a cache");
  const bool is_first = num_microbatches_++ == 0;
  if (num_steps_ <= warmup_steps_) {
    ModelOutput output;
    on_own_stream([&] { output = told(body(input)); });
    return output;
  }
  const std::string key = key_of(input, is_first);
  const auto found = captured_.find(key);
  if (found == captured_.end()) {
    if (captured_.size() >= kMostGraphs) captured_.clear();
    std::unique_ptr<Captured> captured = capture(input, body);
    captured->graph.replay();
    return copy_of(captured_.emplace(key, std::move(captured)).first->second->output);
  }
  Captured& captured = *found->second;
  copy_tensors(captured.input, input, device_);
  captured.graph.replay();
  for (Parameter* parameter : captured.first_written) parameter->mark_grad();
  return copy_of(captured.output);
}

// The body runs for its host effects; device work is only recorded.
std::unique_ptr<MicrobatchGraphs::Captured> MicrobatchGraphs::capture(const ModelInput& input, const Body& body) {
  const DeviceGraph* const neighbour = captured_.empty() ? nullptr : &captured_.begin()->second->graph;
  std::unique_ptr<Captured> captured(new Captured{
      .input = with_own_tensors(input, device_), .graph = {device_, neighbour}, .output = {}, .first_written = {}});
  copy_tensors(captured->input, input, device_);
  for (Parameter* parameter : parameters_) {
    if (parameter->is_trainable() && parameter->is_grad_empty()) captured->first_written.push_back(parameter);
  }
  on_own_stream([&] { captured->graph.capture([&] { captured->output = told(body(captured->input)); }); });
  std::erase_if(captured->first_written, [](const Parameter* parameter) { return parameter->is_grad_empty(); });
  return captured;
}

// On the capture stream, so that libraries' per-stream state exists there; ordered after and before the current
// stream's work.
void MicrobatchGraphs::on_own_stream(const std::function<void()>& work) {
  const c10::Stream outer = current_stream(device_);
  StreamEvent before(device_), after(device_);
  before.record(outer);
  before.make_wait(stream_);
  {
    const StreamScope scope(stream_);
    work();
  }
  after.record(stream_);
  after.make_wait(outer);
}

}  // namespace megalith
