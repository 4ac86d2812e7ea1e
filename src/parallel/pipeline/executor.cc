#include "parallel/pipeline/executor.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "comm/communicators.h"
#include "core/error.h"

namespace megalith {
namespace {

using Key = std::pair<int, int>;  // chunk, microbatch
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMaxTensors = 16;  // per bundle; a transfer's tag has four bits

// A chunk's microbatch from F to the end of B or W.
struct HeldGraph {
  Tensors leaves;                    // inputs that need a gradient, in bundle order
  std::vector<TensorSpec> outputs;   // with a gradient
  torch::autograd::edge_list edges;  // of these outputs; invalid where no gradient is needed
  torch::autograd::Edge objective;
  at::Tensor objective_gradient;
  DeferredGradients::Products products;
};

struct Leaving {
  Work work;
  Tensors tensors;
  size_t record = 0;
  int peer = 0;
  // Computations done when the peer was known to have received this.
  std::optional<int64_t> taken_at;
};

struct Arriving {
  Work work;
  Tensors tensors;
  size_t record = 0;
  int peer = 0;
};

bool has_gradient(at::ScalarType dtype) { return at::isFloatingType(dtype); }

std::string text_of(const TensorSpec& tensor) {
  return fmt::format("{} {} [{}]", tensor.name, c10::toString(tensor.dtype), fmt::join(tensor.shape, ", "));
}

TensorSpec description_of(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.sizes().vec(), tensor.scalar_type()};
}

template <typename Map>
typename Map::mapped_type take(Map& map, const Key& key, const Action& action, const char* what) {
  const auto found = map.find(key);
  MEGALITH_CHECK(found != map.end(), "{}: {}", action.text(), what);
  typename Map::mapped_type taken = std::move(found->second);
  map.erase(found);
  return taken;
}

class PipelineRun {
 public:
  PipelineRun(Group& pipeline, const std::vector<PipelineStage*>& stages, DeferredGradients* deferred,
              at::Device device, const PipelineSchedule& schedule, const std::function<void(const Action&)>& before,
              std::vector<ActionRecord>& records)
      : pipeline_(pipeline),
        stages_(stages),
        deferred_(deferred),
        device_(device),
        shape_(schedule.shape),
        actions_(schedule.ranks[static_cast<size_t>(pipeline.rank())]),
        before_(before),
        records_(records),
        began_(std::chrono::steady_clock::now()) {
    for (const Action& action : actions_) {
      MEGALITH_CHECK(action.chunk >= 0 && action.chunk < shape_.num_chunks, "{} of {} chunks", action.text(),
                     shape_.num_chunks);
      if (is_backward(action.kind)) with_backward_.insert(key_of(action));
    }
    records_.assign(actions_.size(), {});
  }

  void run() {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      records_[i].action = action;
      free_what_was_sent();
      switch (action.kind) {
        case ActionKind::kForward:
          forward(action, records_[i]);
          break;
        case ActionKind::kBackward:
        case ActionKind::kInputBackward:
          backward(action, records_[i]);
          break;
        case ActionKind::kWeightBackward:
          weight_backward(action, records_[i]);
          break;
        case ActionKind::kSendForward:
        case ActionKind::kSendBackward:
          send(action, i);
          break;
        case ActionKind::kReceiveForward:
        case ActionKind::kReceiveBackward:
          receive(action, i);
          break;
      }
      records_[i].live = static_cast<int>(graphs_.size());
    }
    while (!leaving_.empty()) end_send(leaving_.size() - 1);
    const size_t left = graphs_.size() + inputs_.size() + outputs_.size() + gradients_.size() +
                        input_gradients_.size() + arriving_.size();
    MEGALITH_CHECK(left == 0, "the schedule leaves {} graphs and bundles that nobody reads", left);
  }

 private:
  static Key key_of(const Action& action) { return {action.chunk, action.microbatch}; }
  static bool is_backward(ActionKind kind) {
    return kind == ActionKind::kBackward || kind == ActionKind::kInputBackward;
  }
  int stage_of(const Action& action) const { return shape_.stage_of(pipeline_.rank(), action.chunk); }
  bool is_here(int stage) const { return shape_.rank_of(stage) == pipeline_.rank(); }
  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

  HeldGraph& graph_of(const Action& action) {
    const auto found = graphs_.find(key_of(action));
    MEGALITH_CHECK(found != graphs_.end(), "{}: its forward did not run, or it was done before", action.text());
    return found->second;
  }

  // ---- computations ----

  // Wraps a computation whose inputs are ready.
  template <typename Body>
  void compute(const Action& action, ActionRecord& record, const char* name, const Body& body) {
    if (before_) before_(action);
    record.start_s = now();
    {
      at::RecordFunction range(at::RecordScope::USER_SCOPE);
      if (range.isActive()) range.before(fmt::format("{} {}", name, action.text()));
      body();
    }
    record.end_s = now();
    ++num_computations_;
  }

  void forward(const Action& action, ActionRecord& record) {
    const int stage = stage_of(action);
    PipelineStage& part = *stages_[static_cast<size_t>(action.chunk)];
    const bool records = with_backward_.contains(key_of(action));
    Tensors tensors;
    if (stage > 0 && is_here(stage - 1))
      tensors = take(inputs_, key_of(action), action, "the stage before has not run");
    else if (stage > 0)
      tensors = arrived({ActionKind::kReceiveForward, key_of(action)}, action);
    HeldGraph graph;
    Bundle inputs;
    const std::vector<TensorSpec> expected = part.inputs(action.microbatch);
    MEGALITH_CHECK(expected.size() == tensors.size(), "{}: {} tensors come in, the stage expects {}", action.text(),
                   tensors.size(), expected.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (records && has_gradient(expected[i].dtype)) {
        tensors[i].set_requires_grad(true);
        graph.leaves.push_back(tensors[i]);
      }
      inputs.set(expected[i].name, std::move(tensors[i]));
    }
    compute(action, record, "forward", [&] {
      const at::AutoGradMode mode(records);
      StageResult result = part.forward(action.microbatch, inputs);
      inputs.tensors.clear();
      keep_outputs(action, stage, result, graph);
    });
    if (records) {
      const bool is_new = graphs_.emplace(key_of(action), std::move(graph)).second;
      MEGALITH_CHECK(is_new, "{} runs twice", action.text());
    }
  }

  // The graph keeps only the outputs' nodes; the tensors go to the next stage.
  void keep_outputs(const Action& action, int stage, StageResult& result, HeldGraph& graph) {
    Tensors tensors;
    std::vector<TensorSpec> descriptions;
    for (const auto& [name, tensor] : result.outputs.tensors) {
      descriptions.push_back(description_of(name, tensor));
      tensors.push_back(tensor.detach());
      if (!has_gradient(tensor.scalar_type())) continue;
      graph.outputs.push_back(descriptions.back());
      graph.edges.push_back(edge_of(tensor));
    }
    if (result.objective.defined()) {
      graph.objective = edge_of(result.objective);
      graph.objective_gradient = at::ones_like(result.objective.detach());
    }
    result = {};
    const bool is_last = stage + 1 == shape_.num_stages();
    MEGALITH_CHECK(!is_last || tensors.empty(), "the last stage has {} outputs that nobody reads", tensors.size());
    MEGALITH_CHECK(tensors.size() <= kMaxTensors, "a bundle of {} tensors, at most {} can be sent", tensors.size(),
                   kMaxTensors);
    if (is_last) return;
    if (!is_here(stage + 1)) {
      outputs_[key_of(action)] = std::move(tensors);
      return;
    }
    const int next = shape_.chunk_of(stage + 1);
    const std::vector<TensorSpec> expected = stages_[static_cast<size_t>(next)]->inputs(action.microbatch);
    MEGALITH_CHECK(expected.size() == descriptions.size(), "{} gives {} tensors, the next stage expects {}",
                   action.text(), descriptions.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      MEGALITH_CHECK(descriptions[i].name == expected[i].name && descriptions[i].shape == expected[i].shape &&
                         descriptions[i].dtype == expected[i].dtype,
                     "{} gives {}, the next stage expects {}", action.text(), text_of(descriptions[i]),
                     text_of(expected[i]));
    }
    inputs_[{next, action.microbatch}] = std::move(tensors);
  }

  static torch::autograd::Edge edge_of(const at::Tensor& tensor) {
    return tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge();
  }

  void backward(const Action& action, ActionRecord& record) {
    const int stage = stage_of(action);
    HeldGraph& graph = graph_of(action);
    Tensors gradients;
    if (stage + 1 < shape_.num_stages()) {
      gradients = is_here(stage + 1) ? take(gradients_, key_of(action), action, "the next stage has not run backward")
                                     : arrived({ActionKind::kReceiveBackward, key_of(action)}, action);
    }
    MEGALITH_CHECK(gradients.size() == graph.edges.size(), "{}: {} gradients for {} outputs", action.text(),
                   gradients.size(), graph.edges.size());
    const bool is_whole = action.kind == ActionKind::kBackward;
    PipelineStage& part = *stages_[static_cast<size_t>(action.chunk)];
    compute(action, record, is_whole ? "backward" : "input gradients", [&] {
      part.before_backward(action.microbatch);
      if (is_whole) {
        run_graph(graph, std::move(gradients));
      } else {
        deferred_->begin(graph.products);
        const EndOfDeferring end{*deferred_};
        run_graph(graph, std::move(gradients));
      }
      part.after_backward(action.microbatch);
      if (stage > 0) keep_input_gradients(action, stage, graph);
    });
    if (is_whole) graphs_.erase(key_of(action));
  }

  struct EndOfDeferring {
    DeferredGradients& deferred;
    ~EndOfDeferring() { deferred.end(); }
  };

  static void run_graph(HeldGraph& graph, Tensors gradients) {
    torch::autograd::edge_list roots;
    torch::autograd::variable_list root_gradients;
    for (size_t i = 0; i < graph.edges.size(); ++i) {
      if (!graph.edges[i].is_valid()) continue;
      roots.push_back(std::move(graph.edges[i]));
      root_gradients.push_back(std::move(gradients[i]));
    }
    if (graph.objective.is_valid()) {
      roots.push_back(std::move(graph.objective));
      root_gradients.push_back(std::move(graph.objective_gradient));
    }
    graph.edges.clear();
    graph.objective = {};
    if (roots.empty()) return;
    torch::autograd::Engine::get_default_engine().execute(roots, root_gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  }

  void keep_input_gradients(const Action& action, int stage, HeldGraph& graph) {
    Tensors gradients;
    for (const at::Tensor& leaf : graph.leaves) {
      gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
    }
    graph.leaves.clear();
    if (is_here(stage - 1))
      gradients_[{shape_.chunk_of(stage - 1), action.microbatch}] = std::move(gradients);
    else
      input_gradients_[key_of(action)] = std::move(gradients);
  }

  void weight_backward(const Action& action, ActionRecord& record) {
    HeldGraph& graph = graph_of(action);
    compute(action, record, "weight gradients", [&] { DeferredGradients::run(graph.products); });
    graphs_.erase(key_of(action));
  }

  // ---- communication ----

  // Transfers across the border before stage `border`, the same on both sides.
  std::vector<megalith::Transfer> transfers_of(const Tensors& tensors, const Action& action, int border,
                                               bool is_backward) const {
    const bool is_send = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
    const int64_t bundle = (int64_t{border} * shape_.num_microbatches + action.microbatch) * 2 + is_backward;
    std::vector<megalith::Transfer> transfers;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int tag = narrow<int>(bundle * kMaxTensors + static_cast<int64_t>(i));
      MEGALITH_CHECK(tag < kBackwardTag, "{}: too many microbatches and stages to number their transfers",
                     action.text());
      transfers.push_back({tensors[i], action.peer, is_send, is_backward ? tag | kBackwardTag : tag});
    }
    return transfers;
  }

  Work start(const Tensors& tensors, const Action& action, int border, bool is_backward) {
    if (tensors.empty()) return {};
    const char* what = is_backward ? "gradient of the inputs of stage" : "inputs of stage";
    return pipeline_.send_receive(transfers_of(tensors, action, border, is_backward),
                                  fmt::format("{} {}, microbatch {}", what, border, action.microbatch));
  }

  void send(const Action& action, size_t record) {
    const bool is_backward = action.kind == ActionKind::kSendBackward;
    Tensors tensors =
        take(is_backward ? input_gradients_ : outputs_, key_of(action), action, "nothing is there to send");
    for (at::Tensor& tensor : tensors) tensor = tensor.contiguous();
    records_[record].start_s = now();
    Work work = start(tensors, action, stage_of(action) + (is_backward ? 0 : 1), is_backward);
    leaving_.push_back({std::move(work), std::move(tensors), record, action.peer, {}});
  }

  void receive(const Action& action, size_t record) {
    const bool is_backward = action.kind == ActionKind::kReceiveBackward;
    const std::vector<TensorSpec> expected =
        is_backward ? graph_of(action).outputs : stages_[static_cast<size_t>(action.chunk)]->inputs(action.microbatch);
    MEGALITH_CHECK(expected.size() <= kMaxTensors, "a bundle of {} tensors, at most {} can be sent", expected.size(),
                   kMaxTensors);
    Tensors tensors;
    for (const TensorSpec& tensor : expected) {
      tensors.push_back(at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype).device(device_)));
    }
    records_[record].start_s = now();
    Work work = start(tensors, action, stage_of(action) + (is_backward ? 1 : 0), is_backward);
    const std::pair<ActionKind, Key> key{action.kind, key_of(action)};
    const bool is_new =
        arriving_.emplace(key, Arriving{std::move(work), std::move(tensors), record, action.peer}).second;
    MEGALITH_CHECK(is_new, "{} is received twice", action.text());
  }

  Tensors arrived(const std::pair<ActionKind, Key>& key, const Action& action) {
    const auto found = arriving_.find(key);
    MEGALITH_CHECK(found != arriving_.end(), "{} runs before what it reads is received", action.text());
    Arriving arriving = std::move(found->second);
    arriving_.erase(found);
    arriving.work.wait();
    records_[arriving.record].end_s = now();
    for (Leaving& leaving : leaving_) {
      const bool is_earlier = leaving.peer == arriving.peer && leaving.record < arriving.record;
      if (is_earlier && !leaving.taken_at) leaving.taken_at = num_computations_;
    }
    return std::move(arriving.tensors);
  }

  // Frees sent tensors. Gloo reports a send's end only in wait(), so call it once the peer has received it and one more
  // computation is done: the wait is short, and ends because both lists order transfers alike.
  void free_what_was_sent() {
    for (size_t i = leaving_.size(); i-- > 0;) {
      const Leaving& leaving = leaving_[i];
      const bool was_taken = leaving.taken_at && *leaving.taken_at < num_computations_;
      if (was_taken || leaving.work.is_done()) end_send(i);
    }
  }

  void end_send(size_t index) {
    Leaving& leaving = leaving_[index];
    leaving.work.wait();
    records_[leaving.record].end_s = now();
    leaving_.erase(leaving_.begin() + static_cast<ptrdiff_t>(index));
  }

  Group& pipeline_;
  const std::vector<PipelineStage*>& stages_;
  DeferredGradients* deferred_;
  at::Device device_;
  const PipelineShape& shape_;
  const std::vector<Action>& actions_;
  const std::function<void(const Action&)>& before_;
  std::vector<ActionRecord>& records_;
  std::chrono::steady_clock::time_point began_;
  std::set<Key> with_backward_;
  std::map<Key, HeldGraph> graphs_;
  // Bundles between two actions, for the next and the previous stage, local or remote.
  std::map<Key, Tensors> inputs_, outputs_, gradients_, input_gradients_;
  std::map<std::pair<ActionKind, Key>, Arriving> arriving_;
  std::vector<Leaving> leaving_;
  int64_t num_computations_ = 0;
};

}  // namespace

PipelineExecutor::PipelineExecutor(Group& pipeline, std::vector<PipelineStage*> stages, DeferredGradients* deferred,
                                   at::Device device)
    : pipeline_(pipeline), stages_(std::move(stages)), deferred_(deferred), device_(device) {}

void PipelineExecutor::run(const PipelineSchedule& schedule, const std::function<void(const Action&)>& before) {
  const PipelineShape& shape = schedule.shape;
  MEGALITH_CHECK(shape.num_ranks == pipeline_.size() && schedule.ranks.size() == static_cast<size_t>(shape.num_ranks),
                 "a schedule of {} ranks on a pipeline of {}", shape.num_ranks, pipeline_.size());
  MEGALITH_CHECK(static_cast<size_t>(shape.num_chunks) == stages_.size(), "a schedule of {} chunks, the rank has {}",
                 shape.num_chunks, stages_.size());
  MEGALITH_CHECK(deferred_ != nullptr || !schedule.splits_backward(),
                 "the schedule {} splits backward, but no weight gradient can be deferred", schedule.name);
  PipelineRun(pipeline_, stages_, deferred_, device_, schedule, before, records_).run();
}

}  // namespace megalith
