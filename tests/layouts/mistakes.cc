#include "layouts/mistakes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>

#include "comm/sequence_shard.h"
#include "core/error.h"
#include "layouts/forwarded_data_parallel.h"
#include "layouts/mutant_group.h"

namespace megalith::test {
namespace {

using Kind = CollectiveKind;
using How = WrongCollective::How;

Mistake collective(std::string name, const WrongCollective& wrong) {
  return {.name = std::move(name),
          .hooks = {.change_groups = [wrong](Groups& groups) { replace_groups(groups, wrong); }}};
}

// The mistake's placements, before buffers and optimizer read them.
Mistake placement(std::string name, const std::string& parameter,
                  const std::function<void(Placement& placement, const Groups& groups)>& change) {
  return {.name = std::move(name), .hooks = {.change_model = [parameter, change](Model& model, const Groups& groups) {
                                     model.for_each_parameter([&](Parameter& found) {
                                       if (found.name().find(parameter) == std::string::npos) return;
                                       change(const_cast<Placement&>(found.placement()), groups);
                                     });
                                   }}};
}

// What the mistake does to each microbatch.
Mistake batch(std::string name, const std::function<void(Batch& batch, const Groups& groups)>& change) {
  return {.name = std::move(name),
          .hooks = {.change_batches = [change](std::vector<Batch>& batches, const Groups& groups) {
            for (Batch& one : batches) change(one, groups);
          }}};
}

// As if the slice were the next rank's.
void shift_slice(Piece& piece, size_t dim, const Groups& groups) {
  const int64_t next = (groups.tp->rank() + 1) % groups.tp->size();
  piece.canonical.offset[dim] = next * piece.canonical.extent[dim];
}

// A vocabulary that begins one row late on every rank but the first.
void shift_rows(Placement& placement, const Groups& groups) {
  if (groups.tp->rank() == 0 || placement.pieces.empty()) return;
  Piece& piece = placement.pieces[0];
  piece.canonical.offset[0] += 1;
  const int64_t rows = std::min(piece.canonical.extent[0], piece.shape[0] - piece.canonical.offset[0]);
  piece.canonical.extent[0] = piece.local.extent[0] = rows;
  if (rows <= 0) placement.pieces.clear();
}

class Overwriting : public ForwardedDataParallel {
 public:
  using ForwardedDataParallel::ForwardedDataParallel;
  void begin_microbatch(bool is_last) override {
    for (Parameter* parameter : model_.parameters()) parameter->begin_step();
    inner_->begin_microbatch(is_last);
  }
};

class ReducingEarly : public ForwardedDataParallel {
 public:
  using ForwardedDataParallel::ForwardedDataParallel;
  void begin_microbatch(bool /*is_last*/) override { inner_->begin_microbatch(true); }
};

class LosingAPart : public ForwardedDataParallel {
 public:
  LosingAPart(std::unique_ptr<DataParallel> inner, const BuiltModel& model, const Groups& groups)
      : ForwardedDataParallel(std::move(inner), model), parts_(inner_->parts()) {
    if (groups.dp->size() > 1 && groups.dp->is_last()) parts_.pop_back();
  }
  const std::vector<OwnedPart>& parts() const override { return parts_; }

 private:
  std::vector<OwnedPart> parts_;
};

void add_collectives(std::vector<Mistake>& list) {
  const auto add = [&](std::string name, WrongCollective wrong) { list.push_back(collective(std::move(name), wrong)); };
  const auto two_dims = [](const at::Tensor& in, ReduceOp op) { return op == ReduceOp::kSum && in.dim() == 2; };
  const auto hidden_wide = [=](const at::Tensor& in, ReduceOp op) { return two_dims(in, op) && in.size(1) == 20; };
  const auto statistics = [](const at::Tensor& in, ReduceOp op) { return op == ReduceOp::kSum && in.size(0) == 2; };
  const auto flat = [](const at::Tensor& in, ReduceOp) { return in.dim() == 1; };
  add("column linear: dx not summed over tp", {Kind::kAllReduce, "qkv_proj.weight"});
  add("column linear, sequence parallel: dx not summed", {Kind::kReduceScatter, "gate_up_proj.weight"});
  add("column linear, sequence parallel: tokens gathered in the wrong order",
      {Kind::kAllGather, "qkv_proj.weight", How::kReverse});
  add("column linear, sequence parallel: own tokens in place of the others'",
      {Kind::kAllGather, "gate_up_proj.weight"});
  add("row linear: y not summed over tp", {Kind::kAllReduce, "o_proj.weight"});
  add("row linear, sequence parallel: y not summed", {Kind::kReduceScatter, "down_proj.weight"});
  add("row linear, sequence parallel: tokens scattered in the wrong order",
      {Kind::kReduceScatter, "o_proj.weight", How::kReverse});
  add("row linear, sequence parallel: dy gathered in the wrong order",
      {Kind::kAllGather, "down_proj.weight", How::kReverse});
  add("row linear: y summed twice", {Kind::kAllReduce, "down_proj.weight", How::kTwice});
  add("embedding: rows of the other ranks missing", {Kind::kAllReduce, "embed_tokens.weight"});
  add("loss: sums of the softmax not summed over tp", {Kind::kAllReduce, "lm_head.weight", How::kSkip, statistics});
  add("loss: dx not summed over tp", {Kind::kAllReduce, "lm_head.weight", How::kSkip, hidden_wide});
  add("norm weights not summed over tp", {Kind::kAllReduce, "gradients partial over tp"});
  add("norm weights summed twice", {Kind::kAllReduce, "gradients partial over tp", How::kTwice});
  add("gradients not summed over dp", {Kind::kAllReduce, "grad bucket"});
  add("one gradient bucket not summed over dp", {Kind::kAllReduce, "grad bucket 1"});
  add("gradients averaged over dp", {Kind::kAllReduce, "grad bucket", How::kAverage});
  add("distributed optimizer: gradients not summed", {Kind::kReduceScatter, "grad bucket"});
  add("distributed optimizer: runs scattered in the wrong order", {Kind::kReduceScatter, "grad bucket", How::kReverse});
  add("distributed optimizer: own parameters in place of the others'", {Kind::kAllGather, "parameter bucket"});
  add("FSDP: parameters gathered in the wrong order", {Kind::kAllGather, "model.layers.0", How::kReverse, flat});
  add("FSDP: gradients not summed", {Kind::kReduceScatter, "model.layers.0", How::kSkip, flat});
  add("loss divided by this rank's tokens", {Kind::kAllReduce, "valid tokens"});
  add("reported loss not summed over dp", {Kind::kAllReduce, "statistics of the step"});
  add("clipping by the local norm", {Kind::kAllReduce, "gradient norm"});
  add("ring: keys and values never arrive", {Kind::kSendReceive, "self_attn k v"});
  add("ring: keys and values go the other way", {Kind::kSendReceive, "self_attn k v", How::kReverse});
  add("ring: sums of gradients go the other way", {Kind::kSendReceive, "self_attn dk dv", How::kReverse});
  add("all-gather of values in the wrong order", {Kind::kAllGather, "self_attn v", How::kReverse});
  add("all-gather: gradients of keys not summed", {Kind::kReduceScatter, "self_attn dk"});
  add("all-to-all: heads of another rank", {Kind::kAllToAll, "self_attn q k v", How::kReverse});
  add("all-to-all: outputs not given back", {Kind::kAllToAll, "self_attn out"});
  add("all-to-all: gradients not given back", {Kind::kAllToAll, "self_attn dq dk dv"});
  add("eight bits: a scale of each rank's part of a tensor", {Kind::kAllReduce, " amax"});
  add("modulation, sequence parallel: gradients of a rank's own tokens", {Kind::kReduceScatter, "modulation"});
  add("pictures, sequence parallel: the loss of a rank's own tokens", {Kind::kAllReduce, "mse loss"});
}

void add_placements(std::vector<Mistake>& list) {
  const auto add = [&](std::string name, const std::string& parameter,
                       const std::function<void(Placement&, const Groups&)>& change) {
    list.push_back(placement(std::move(name), parameter, change));
  };
  add("modulation: rows of the next rank", ".norm1.linear.weight",
      [](Placement& p, const Groups& groups) { shift_slice(p.pieces[0], 0, groups); });
  add("row linear: columns of the next rank", "o_proj.weight",
      [](Placement& p, const Groups& groups) { shift_slice(p.pieces[0], 1, groups); });
  add("query heads of the next rank beside this one's keys", "layers.1.self_attn.qkv_proj.weight",
      [](Placement& p, const Groups& groups) { shift_slice(p.pieces[0], 0, groups); });
  add("key and value swapped", "qkv_proj.weight",
      [](Placement& p, const Groups&) { std::swap(p.pieces[1].name, p.pieces[2].name); });
  add("query biases of the next rank", "qkv_proj.bias",
      [](Placement& p, const Groups& groups) { shift_slice(p.pieces[0], 0, groups); });
  add("gate and up swapped", "layers.0.mlp.gate_up_proj.weight",
      [](Placement& p, const Groups&) { std::swap(p.pieces[0].name, p.pieces[1].name); });
  add("embedding: rows loaded one off", "embed_tokens.weight", shift_rows);
  add("head: rows loaded one off", "lm_head.weight", shift_rows);
  add("norm: every tp replica counted in the gradient norm", "norm.weight",
      [](Placement& p, const Groups&) { p.replica_axes = p.replica_axes.without(Axis::kTp); });
  add("norm: every dp replica counted in the gradient norm", "norm.weight",
      [](Placement& p, const Groups&) { p.replica_axes = p.replica_axes.without(Axis::kDp); });
  add("norm: slices taken for replicas in the gradient norm", "down_proj.weight",
      [](Placement& p, const Groups&) { p.replica_axes.insert(Axis::kTp); });
  add("slices of a column linear summed over tp", "gate_up_proj.weight",
      [](Placement& p, const Groups&) { p.partial_axes.insert(Axis::kTp); });
}

void add_data(std::vector<Mistake>& list) {
  list.push_back(batch("dropout keyed by data-parallel rank", [](Batch& batch, const Groups& groups) {
    batch.at(field::kSampleIndex).add_(1000 * groups.dp->rank());
  }));
  list.push_back(batch("dropout keyed by place in the microbatch", [](Batch& batch, const Groups&) {
    batch.set(field::kSampleIndex, at::arange(batch.num_rows(), at::kLong));
  }));
  const auto reads = [&](std::string name, const std::function<int(const Groups&)>& data_rank) {
    list.push_back({.name = std::move(name), .hooks = {.data_rank = data_rank}});
  };
  reads("tensor-parallel ranks read different samples",
        [](const Groups& groups) { return (groups.dp->rank() + groups.tp->rank()) % groups.dp->size(); });
  reads("data-parallel ranks read the same samples", [](const Groups&) { return 0; });
  // Written where the zig-zag will take them from, so that the rank has the tokens of a contiguous part.
  const auto contiguous = [](std::string_view name) {
    return [name](Batch& batch, const Groups& groups) {
      const int size = groups.cp->size(), rank = groups.cp->rank();
      if (size == 1) return;
      const at::Tensor whole = batch.at(name).clone();
      const int64_t part = whole.size(1) / size;
      batch.at(name).index_copy_(1, zigzag_indices(whole.size(1), size, rank), whole.narrow(1, rank * part, part));
    };
  };
  list.push_back(batch("labels of a contiguous part, not of the zig-zag", contiguous(field::kLabels)));
  list.push_back(batch("positions of a contiguous part, not of the zig-zag", contiguous(field::kPositionIds)));
  list.push_back(batch("documents of another context-parallel rank's row", [](Batch& batch, const Groups& groups) {
    if (!batch.has(field::kDocumentIds)) return;
    batch.set(field::kDocumentIds, batch.at(field::kDocumentIds).roll(groups.cp->rank(), 0));
  }));
  reads("context-parallel ranks read different samples",
        [](const Groups& groups) { return (groups.dp->rank() + groups.cp->rank()) % groups.dp->size(); });
  const auto forgets = [&](std::string name, const auto& wrap) {
    list.push_back({.name = std::move(name), .hooks = {.change_data_parallel = wrap}});
  };
  forgets("accumulation overwrites", [](std::unique_ptr<DataParallel> inner, const BuiltModel& model, const Groups&) {
    return std::unique_ptr<DataParallel>(new Overwriting(std::move(inner), model));
  });
  forgets("reduction begun by the first microbatch",
          [](std::unique_ptr<DataParallel> inner, const BuiltModel& model, const Groups&) {
            return std::unique_ptr<DataParallel>(new ReducingEarly(std::move(inner), model));
          });
  forgets("a parameter not updated on one dp rank",
          [](std::unique_ptr<DataParallel> inner, const BuiltModel& model, const Groups& groups) {
            return std::unique_ptr<DataParallel>(new LosingAPart(std::move(inner), model, groups));
          });
}

void add_pipelines(std::vector<Mistake>& list) {
  list.push_back({.name = "pipeline: two stages hold each other's layers",
                  .change_pipeline = [](PipelinePlan plan) {
                    const auto layer_in = [&](size_t stage) {
                      const UnitRange& range = plan.stages[stage];
                      return std::find_if(plan.units.begin() + range.first, plan.units.begin() + range.end(),
                                          [](const Unit& unit) { return unit.letter == UnitLetter::kLayer; });
                    };
                    if (plan.stages.size() > 1 && plan.layers_of(plan.stages[0]).count > 0 &&
                        plan.layers_of(plan.stages[1]).count > 0) {
                      std::iter_swap(layer_in(0), layer_in(1));
                    }
                    return plan;
                  }});
  list.push_back({.name = "pipeline: the last stage reads the microbatches in another order",
                  .hooks = {.change_batches = [](std::vector<Batch>& batches, const Groups& groups) {
                    if (groups.pp->size() > 1 && groups.pp->is_last()) std::reverse(batches.begin(), batches.end());
                  }}});
  list.push_back(
      collective("pipeline: bundles of another microbatch", {Kind::kSendReceive, "inputs of stage", How::kLate}));
  list.push_back(collective("pipeline: a stage gets the gradient of another microbatch",
                            {Kind::kSendReceive, "gradient of the inputs", How::kLate}));
  list.push_back(
      collective("pipeline: no gradient comes back", {Kind::kSendReceive, "gradient of the inputs", How::kZero}));
  const auto of_samples = [](const at::Tensor& in, ReduceOp) { return in.dim() == 2 && in.size(0) == 2; };
  list.push_back(collective("pipeline: what modulates all blocks gets its gradient from one stage",
                            {Kind::kSendReceive, "gradient of the inputs", How::kZero, of_samples}));
  list.push_back(collective("tied embedding: the gradients of the two ends not summed",
                            {Kind::kAllReduce, "gradients of the tied embedding"}));
  list.push_back(placement("tied embedding: counted twice in the gradient norm", "embed_tokens.weight",
                           [](Placement& p, const Groups&) { p.replica_axes = p.replica_axes.without(Axis::kPp); }));
}

void add_exchanges_of_tokens(std::vector<Mistake>& list) {
  const auto add = [&](std::string name, WrongCollective wrong) { list.push_back(collective(std::move(name), wrong)); };
  // Labels end in these words after the layer's name.
  const auto whole_rows = [](const at::Tensor& in, ReduceOp) { return in.dim() == 2 && in.size(1) == 20; };
  add("all-to-all of tokens: rows of other ranks", {Kind::kAllToAll, " tokens", How::kReverse});
  add("all-to-all of tokens: rows stay where they are", {Kind::kAllToAll, " tokens"});
  add("all-to-all of tokens: rows of the layer before", {Kind::kAllToAll, " tokens", How::kLate});
  add("all-to-all of tokens: weights of other rows", {Kind::kAllToAll, " weights", How::kReverse});
  add("all-to-all of tokens: weights of the layer before", {Kind::kAllToAll, " weights", How::kLate});
  add("all-to-all of tokens: results given to other ranks", {Kind::kAllToAll, " results", How::kReverse});
  add("all-to-all of tokens: results not given back", {Kind::kAllToAll, " results"});
  add("all-to-all of tokens: gradients of the rows not given back", {Kind::kAllToAll, " tokens gradient", How::kZero});
  add("all-to-all of tokens: gradients of the results late", {Kind::kAllToAll, " results gradient", How::kLate});
  add("all-to-all of tokens: gradients of the weights lost", {Kind::kAllToAll, " weights gradient", How::kZero});
  add("all-gather of tokens: in the wrong order", {Kind::kAllGather, " tokens", How::kReverse, whole_rows});
  add("all-gather of tokens: own tokens in place of the others'",
      {Kind::kAllGather, " tokens", How::kSkip, whole_rows});
  add("all-gather of tokens: weights in the wrong order", {Kind::kAllGather, " weights", How::kReverse});
  add("all-gather of tokens: choices in the wrong order", {Kind::kAllGather, " experts", How::kReverse});
  add("all-gather of tokens: results of the other experts forgotten", {Kind::kReduceScatter, " results"});
  add("all-gather of tokens: results scattered in the wrong order", {Kind::kReduceScatter, " results", How::kReverse});
  add("all-gather of tokens: gradients not summed", {Kind::kReduceScatter, " tokens gradient"});
  add("all-gather of tokens: gradients of the weights not summed", {Kind::kReduceScatter, " weights gradient"});
  add("tokens split over tp: joined in the wrong order", {Kind::kAllGather, " output", How::kReverse});
}

void add_experts(std::vector<Mistake>& list) {
  const auto add = [&](std::string name, WrongCollective wrong) { list.push_back(collective(std::move(name), wrong)); };
  const auto place = [&](std::string name, const std::string& parameter,
                         const std::function<void(Placement&, const Groups&)>& change) {
    list.push_back(placement(std::move(name), parameter, change));
  };
  add("balance of experts: statistics of only this rank's tokens", {Kind::kAllReduce, " balance"});
  add("balance of experts: statistics averaged over the ranks", {Kind::kAllReduce, " balance", How::kAverage});
  add("capacity: own choices in place of the others'", {Kind::kAllGather, " choices"});
  add("expert bias: moved by only this rank's counts", {Kind::kAllReduce, "statistics of the step"});
  add("latent attention: gradient of the shared key not summed over tp", {Kind::kAllReduce, ".k_rope"});
  add("latent attention, sequence parallel: gradient of the shared key not summed", {Kind::kReduceScatter, ".k_rope"});
  add("latent attention, sequence parallel: shared key in the wrong order",
      {Kind::kAllGather, ".k_rope", How::kReverse});
  add("prediction module: labels rolled within a rank's own part", {Kind::kAllGather, "labels of prediction modules"});
  place("experts: gradients not reduced over edp", ".experts.",
        [](Placement& p, const Groups&) { p.partial_axes = {}; });
  place("experts: gradients reduced as those of dense layers", ".experts.", [](Placement& p, const Groups&) {
    p.partial_axes = p.replica_axes = {Axis::kDp, Axis::kCp};
  });
  place("experts: every replica counted in the gradient norm", ".experts.",
        [](Placement& p, const Groups&) { p.replica_axes = {}; });
  place("experts: those of other ranks taken for replicas in the norm", ".experts.",
        [](Placement& p, const Groups&) { p.replica_axes.insert(Axis::kEp); });
  place("experts: parts of other ranks taken for replicas in the norm", ".experts.",
        [](Placement& p, const Groups&) { p.replica_axes.insert(Axis::kEtp); });
  place("experts: gate and up swapped", ".experts.gate_up_proj.weight",
        [](Placement& p, const Groups&) { std::swap(p.pieces[0].name, p.pieces[1].name); });
  place("experts: two of a rank in the wrong order", ".experts.down_proj.weight",
        [](Placement& p, const Groups&) { std::swap(p.pieces.front().name, p.pieces.back().name); });
  place("router: weight not summed over cp", ".gate.weight",
        [](Placement& p, const Groups&) { p.partial_axes = p.partial_axes.without(Axis::kCp); });
}

void add_muon(std::vector<Mistake>& list) {
  const auto add = [&](std::string name, WrongCollective wrong) {
    list.push_back(collective("Muon: " + std::move(name), wrong));
    list.back().rule = OptimizerKind::kMuon;
  };
  add("each rank computes with its own slice in all places", {Kind::kAllToAll, "slices of matrices"});
  add("slices of a matrix in another order", {Kind::kAllToAll, "slices of matrices", How::kReverse});
  add("updates of slices not given back", {Kind::kAllToAll, "updates of slices"});
  add("runs of a slice in another order", {Kind::kAllToAll, "runs of matrices", How::kReverse});
  add("updates of runs not given back", {Kind::kAllToAll, "updates of runs"});
  add("updates of runs of other ranks", {Kind::kAllToAll, "updates of runs", How::kReverse});
}

void add_shared_sums(std::vector<Mistake>& list) {
  for (const char* sums : {"mean squares of rows and columns", "mean squares of updates"}) {
    list.push_back(collective(fmt::format("Adafactor: {} not added up", sums), {Kind::kAllReduce, sums}));
    list.back().rule = OptimizerKind::kAdafactor;
  }
  const char* const maxima = "largest moments of blocks";
  list.push_back(collective(fmt::format("8-bit Adam: {} not compared", maxima), {Kind::kAllReduce, maxima}));
  list.back().rule = OptimizerKind::kAdam8bit;
}

// A collective done wrong on the ranks of one pipeline stage.
Mistake on_stage(int stage, std::string name, const WrongCollective& wrong) {
  return {.name = std::move(name), .hooks = {.change_groups = [=](Groups& groups) {
            if (groups.pp->size() == 4 && groups.pp->rank() == stage) replace_groups(groups, wrong);
          }}};
}

void add_encoders_and_decoders(std::vector<Mistake>& list) {
  const auto add = [&](std::string name, WrongCollective wrong) { list.push_back(collective(std::move(name), wrong)); };
  const auto place = [&](std::string name, const std::string& parameter,
                         const std::function<void(Placement&, const Groups&)>& change) {
    list.push_back(placement(std::move(name), parameter, change));
  };
  const std::string keys = "EncDecAttention.kv_proj.weight", positions = "relative_attention_bias";
  add("the memory's gradient not summed over tp", {Kind::kAllReduce, keys});
  add("the memory's gradient not summed and scattered", {Kind::kReduceScatter, keys});
  add("the memory gathered in the wrong order", {Kind::kAllGather, keys, How::kReverse});
  add("own memory in place of the others'", {Kind::kAllGather, keys});
  // Between decoder stages go the stream and the memory.
  for (const int which : {0, 1}) {
    const auto one_of_two = [which, seen = std::make_shared<std::atomic<int>>(0)](const at::Tensor&, ReduceOp) {
      return (*seen)++ % 2 == which;
    };
    const std::string half = which == 0 ? "stream" : "memory";
    list.push_back(on_stage(2, "no gradient of the " + half + " comes back from the last decoder stage",
                            {Kind::kSendReceive, "gradient of the inputs of stage 3", How::kZero, one_of_two}));
    list.push_back(on_stage(3, "the last stage does not get the " + half,
                            {Kind::kSendReceive, "inputs of stage 3", How::kZero, one_of_two}));
  }
  place("positions of another rank's heads", positions,
        [](Placement& p, const Groups& groups) { shift_slice(p.pieces[0], 1, groups); });
  place("positions not summed over the stages of a stack", positions,
        [](Placement& p, const Groups&) { p.partial_axes = Axis::kDp; });
  place("positions counted in the norm by each stage", positions,
        [](Placement& p, const Groups&) { p.replica_axes = Axis::kDp; });
  place("positions not summed over the ranks", positions, [](Placement& p, const Groups&) { p.partial_axes = {}; });
  place("the vocabulary's table not summed over both stacks", "shared.weight",
        [](Placement& p, const Groups&) { p.partial_axes = Axis::kDp; });
  const std::string vectors = "vectors of texts";
  add("own texts in the places of the others'", {Kind::kAllGather, vectors});
  add("the ranks' texts in another order", {Kind::kAllGather, vectors, How::kReverse});
  add("only the own slice of the texts' gradient", {Kind::kReduceScatter, vectors});
  add("another rank's slice of it", {Kind::kReduceScatter, vectors, How::kReverse});
  add("a mean of the ranks' gradients of a text", {Kind::kReduceScatter, vectors, How::kAverage});
}

}  // namespace

std::vector<Mistake> seeded_mistakes() {
  std::vector<Mistake> list;
  add_pipelines(list);
  add_collectives(list);
  add_placements(list);
  add_data(list);
  add_encoders_and_decoders(list);
  for (Mistake& mistake : list) mistake.is_of_experts = false;
  const auto num_others = static_cast<std::ptrdiff_t>(list.size());
  add_exchanges_of_tokens(list);
  add_experts(list);
  std::for_each(list.begin() + num_others, list.end(), [](Mistake& mistake) { mistake.is_of_experts = true; });
  add_muon(list);
  add_shared_sums(list);
  return list;
}

std::vector<Mistake> mistakes_for_types() {
  std::vector<Mistake> list;
  const auto add = [&](std::string name, WrongCollective wrong) { list.push_back(collective(std::move(name), wrong)); };
  const auto flat = [](const at::Tensor& in, ReduceOp) { return in.dim() == 1; };
  add("row linear: y averaged over tp", {Kind::kAllReduce, "o_proj.weight", How::kAverage});
  add("row linear, sequence parallel: y averaged", {Kind::kReduceScatter, "down_proj.weight", How::kAverage});
  add("row linear, sequence parallel: only its own tokens' dy", {Kind::kAllGather, "down_proj.weight"});
  add("column linear: dx summed twice", {Kind::kAllReduce, "gate_up_proj.weight", How::kTwice});
  add("column linear, sequence parallel: dx averaged", {Kind::kReduceScatter, "qkv_proj.weight", How::kAverage});
  add("embedding: rows summed twice", {Kind::kAllReduce, "embed_tokens.weight", How::kTwice});
  add("embedding, sequence parallel: rows not summed", {Kind::kReduceScatter, "embed_tokens.weight"});
  add("embedding, sequence parallel: only its own tokens' gradient", {Kind::kAllGather, "embed_tokens.weight"});
  add("head, sequence parallel: only its own tokens", {Kind::kAllGather, "lm_head.weight"});
  add("norm weights averaged over tp", {Kind::kAllReduce, "gradients partial over tp", How::kAverage});
  add("tied embedding: the two ends averaged", {Kind::kAllReduce, "gradients of the tied embedding", How::kAverage});
  add("tied embedding: summed twice", {Kind::kAllReduce, "gradients of the tied embedding", How::kTwice});
  add("distributed optimizer: gradients averaged", {Kind::kReduceScatter, "grad bucket", How::kAverage});
  add("FSDP: gradients averaged", {Kind::kReduceScatter, "model.layers.0", How::kAverage, flat});
  add("FSDP: own run of the weights in place of the others'", {Kind::kAllGather, "model.layers.0", How::kSkip, flat});
  add("all-gather: gradients of keys averaged", {Kind::kReduceScatter, "self_attn dk", How::kAverage});
  add("all-gather of tokens: results averaged", {Kind::kReduceScatter, " results", How::kAverage});
  add("latent attention: gradient of the shared key summed twice", {Kind::kAllReduce, ".k_rope", How::kTwice});
  list.push_back(placement("norms: gradients of other samples left out", "norm.weight",
                           [](Placement& p, const Groups&) { p.partial_axes = p.partial_axes.without(Axis::kDp); }));
  list.push_back(placement("router: gradients of other samples left out", ".gate.weight",
                           [](Placement& p, const Groups&) { p.partial_axes = p.partial_axes.without(Axis::kDp); }));
  return list;
}

void expect_seen(const Mistake& mistake, std::vector<LayoutRow>& rows) {
  std::string seen;
  const auto tries = [&](const std::function<std::string(LayoutRow&)>& shown_by) {
    for (size_t i = 0; i < rows.size() && seen.empty(); ++i) {
      LayoutRow& row = rows[i];
      if (mistake.is_of_experts.value_or(row.has_experts()) != row.has_experts()) continue;
      if (mistake.rule != row.rule()) continue;
      if (mistake.source == MistakeSource::kBuild) row.forget_expected();
      const std::string shown = shown_by(row);
      if (shown.empty()) continue;
      seen = row.text() + ": " + shown.substr(0, shown.find('\n'));
      // The next mistake is often of the same part: the row that showed this one is tried first.
      const auto at = rows.begin() + static_cast<std::ptrdiff_t>(i);
      std::rotate(rows.begin(), at, at + 1);
    }
  };
  tries([&](LayoutRow& row) {
    PipelinePlan& plan = row.layout().derived.pipeline;
    const PipelinePlan right = plan;
    if (mistake.change_pipeline) plan = mistake.change_pipeline(plan);
    std::string difference = row.difference(mistake.hooks);
    plan = right;
    return difference;
  });
  // Only documents and float32, which the whole check has, are left.
  if (seen.empty() && !mistake.change_pipeline && mistake.source != MistakeSource::kFormula) {
    tries([&](LayoutRow& row) { return row.fresh_check()->run_as_threads(&mistake.hooks).failure; });
  }
  EXPECT_NE(seen, "") << "no row shows: " << mistake.name;
  std::printf("  %s\n    %s\n", mistake.name.c_str(), seen.c_str());
  std::fflush(stdout);
}

std::string found_by_types(std::vector<LayoutRow>& rows, const TypeHooks& hooks, std::optional<bool> is_of_experts) {
  for (size_t i = 0; i < rows.size(); ++i) {
    LayoutRow& row = rows[i];
    if (is_of_experts.value_or(row.has_experts()) != row.has_experts()) continue;
    TypeReport report;
    try {
      report = check_types(row.layout(), hooks);
    } catch (const UserError&) {
      continue;  // the mistake ends the step
    }
    if (report.is_ok()) continue;
    const std::string found = row.text() + ": " + report.findings[0].text();
    const auto at = rows.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(rows.begin(), at, at + 1);
    return found;
  }
  return "";
}

}  // namespace megalith::test
