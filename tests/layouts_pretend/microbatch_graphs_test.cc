// Microbatches as graphs give what they give without, and what a graph must not hold is seen.
#include "train/microbatch_graphs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/memory.h"
#include "layouts_pretend/devices_of_ranks.h"
#include "nn/parameter.h"
#include "ops/dropout/dropout.h"
#include "pretend/accelerator/streams.h"
#include "pretend/accelerator/waits.h"

namespace megalith {
namespace {

using namespace test;

constexpr int64_t kTokens = 6, kWidth = 8;
const at::Device kPretendDevice(at::kPrivateUse1, 0);

// What a step's host code knows, and might put into a graph by mistake.
struct HostNumbers {
  int64_t step = 0, first_row = 0;
  double scale = 1, per_microbatch = 1;
};

ModelInput input_of(const HostNumbers& host) {
  const auto options = at::TensorOptions(kPretendDevice);
  ModelInput input;
  input.context.b = 1;
  input.context.s = kTokens;
  input.tokens = (at::arange(kTokens, options.dtype(at::kLong)) + host.first_row).remainder(4).unsqueeze(0);
  input.context.row_ids = (at::arange(kTokens, options.dtype(at::kLong)) + host.first_row).unsqueeze(0);
  input.terms = {{.name = "loss", .per_weight = at::full({}, host.scale, options.dtype(at::kDouble))}};
  input.per_microbatch = host.per_microbatch;
  return input;
}

// A layer of one weight: its gradient is its dropped and scaled input.
struct Layer {
  Layer()
      : weight("weight", Placement::whole("weight", {kWidth}),
               {.dtype = at::kFloat, .device = kPretendDevice, .init = Init::constant(1)}) {
    weight.attach_grad_buffer(at::zeros({kWidth}, at::TensorOptions(kPretendDevice).dtype(at::kFloat)));
    weight.initialise(1);
  }
  ModelOutput run(const at::Tensor& tokens, const at::Tensor& row_ids, const at::Tensor& per_weight, double factor) {
    const at::Tensor x = tokens.reshape({-1, 1}).to(at::kFloat).expand({kTokens, kWidth}).contiguous() + 1;
    const at::Tensor dropped = ops::dropout(x, row_ids.reshape({-1}), 0, 0.5, 7);
    weight.expect_contribution();
    weight.add_grad((dropped.sum(0) * per_weight * factor).to(at::kFloat));
    ModelOutput output;
    const at::Tensor sum = (dropped.sum(0) * weight.data()).sum();
    output.terms.push_back({.name = "loss", .sum = sum, .weight = at::full_like(sum, kTokens), .objective = {}});
    return output;
  }
  Parameter weight;
};

// Which of the host's numbers a body takes from the host.
enum class Baked { kNothing, kRows, kScale, kLearningRate };

std::string name_of(Baked baked) {
  switch (baked) {
    case Baked::kNothing:
      return "nothing";
    case Baked::kRows:
      return "the rows that key dropout";
    case Baked::kScale:
      return "the loss scale";
    case Baked::kLearningRate:
      return "the learning rate";
  }
  return "";
}

// The sums, gradients and weights of a few steps of three microbatches, one after another.
std::vector<double> trained(bool has_graphs, Baked baked) {
  Layer layer;
  MicrobatchGraphs graphs(kPretendDevice, {&layer.weight}, has_graphs ? 2 : 1000);
  std::vector<double> told;
  HostNumbers host;
  for (host.step = 0; host.step < 6; ++host.step) {
    host.scale = host.step < 4 ? 8 : 2;           // as a dynamic loss scale falls
    host.per_microbatch = host.step < 5 ? 4 : 3;  // another number of microbatches
    const double lr = 0.5 / static_cast<double>(1 + host.step);
    layer.weight.begin_step();
    layer.weight.set_last_microbatch(false);
    graphs.begin_step();
    std::vector<ModelOutput> outputs;
    for (int microbatch = 0; microbatch < 3; ++microbatch, host.first_row += kTokens) {
      outputs.push_back(graphs.run(input_of(host), [&](const ModelInput& input) {
        const HostNumbers now = host;
        at::Tensor rows = input.context.row_ids, scale = input.terms[0].per_weight;
        if (baked == Baked::kRows) {
          rows = at::arange(now.first_row, now.first_row + kTokens, rows.options());
        } else if (baked == Baked::kScale) {
          scale = at::full({}, now.scale, scale.options());
        }
        const double factor = baked == Baked::kLearningRate ? lr : input.per_microbatch;
        return layer.run(input.tokens, rows, scale, factor);
      }));
    }
    layer.weight.finish_step();
    layer.weight.data().sub_(layer.weight.grad(), lr);
    for (const ModelOutput& output : outputs) told.push_back(output.terms[0].sum.item<double>());
    told.push_back(layer.weight.grad().sum().item<double>());
    told.push_back(layer.weight.data().sum().item<double>());
  }
  return told;
}

TEST(MicrobatchGraphs, GiveTheBitsOfTheSameWithoutThem) {
  EXPECT_EQ(trained(true, Baked::kNothing), trained(false, Baked::kNothing));
}

TEST(MicrobatchGraphs, ThatHoldANumberOfTheHostAreSeen) {
  for (const Baked baked : {Baked::kRows, Baked::kScale, Baked::kLearningRate}) {
    EXPECT_NE(trained(true, baked), trained(false, baked)) << "no run shows: " << name_of(baked);
  }
}

TEST(MicrobatchGraphs, AreCapturedForOtherNumbersAndShapesAnew) {
  Layer layer;
  MicrobatchGraphs graphs(kPretendDevice, {&layer.weight}, 1);
  int num_calls = 0;
  const auto body = [&](const ModelInput& input) {
    ++num_calls;
    return layer.run(input.tokens, input.context.row_ids, input.terms[0].per_weight, input.per_microbatch);
  };
  const auto step = [&](const HostNumbers& host) {
    layer.weight.begin_step();
    layer.weight.set_last_microbatch(false);
    graphs.begin_step();
    num_calls = 0;
    for (int microbatch = 0; microbatch < 3; ++microbatch) graphs.run(input_of(host), body);
    layer.weight.finish_step();
    return num_calls;
  };
  EXPECT_EQ(step({}), 3) << "a step without graphs";
  EXPECT_EQ(step({}), 2) << "one for the first microbatch, one for the others";
  EXPECT_EQ(step({.first_row = 600, .scale = 3}), 0);
  EXPECT_EQ(step({.per_microbatch = 2}), 2);
  EXPECT_EQ(step({}), 0) << "the older graphs are still there";
}

// Gradients are summed over ranks after the last replay, and parameters gathered before the first.
TEST(MicrobatchGraphs, OfSeveralRanksGiveWhatOneRankGives) {
  CheckHooks graphs = on_devices();
  graphs.graph_warmup_steps = 2;
  for (const char* words : {"untied dp2", "untied drop dp2 zero", "llama dp2 two"}) {
    LayoutRow row(words);
    row.layout().derived.train_iters = row.one_rank().derived.train_iters = 4;
    EXPECT_EQ(row.difference(graphs), "") << words;
    forget_what_streams_hold();
  }
}

// With the kernels of a GPU: the references of experts' products read on the host where each expert's rows begin.
TEST(MicrobatchGraphs, KeepTheBitsOfExpertsOnSeveralRanks) {
  LayoutRow row("mixtral dropping dp2 zero");
  row.compute_in(at::kFloat, Kernels::kFused);
  row.layout().derived.train_iters = 4;
  CheckHooks hooks = on_devices();
  const std::vector<RankOutcome> without = run_as_threads(row.layout(), hooks);
  hooks.graph_warmup_steps = 2;
  const std::vector<RankOutcome> with = run_as_threads(row.layout(), hooks);
  ASSERT_EQ(with.size(), without.size());
  for (size_t rank = 0; rank < with.size(); ++rank) {
    EXPECT_EQ(with[rank].losses, without[rank].losses) << rank;
    EXPECT_EQ(with[rank].grad_norms, without[rank].grad_norms) << rank;
    for (const auto& [name, holding] : with[rank].parameters) {
      EXPECT_TRUE(at::equal(holding.value, without[rank].parameters.at(name).value)) << rank << " " << name;
    }
  }
  forget_what_streams_hold();
}

TEST(MicrobatchGraphs, NeitherWaitNorAskForMemoryOnceCaptured) {
  Layer layer;
  MicrobatchGraphs graphs(kPretendDevice, {&layer.weight}, 1);
  const ModelInput input = input_of({});
  const auto body = [&](const ModelInput& own) {
    return layer.run(own.tokens, own.context.row_ids, own.terms[0].per_weight, own.per_microbatch);
  };
  int64_t allocated = 0;
  for (int step = 0; step < 5; ++step) {
    layer.weight.begin_step();
    layer.weight.set_last_microbatch(false);
    graphs.begin_step();
    if (step == 2) {
      pretend::forget_waits();
      allocated = memory_stats(kPretendDevice).allocated_bytes;
    }
    for (int microbatch = 0; microbatch < 2; ++microbatch) graphs.run(input, body);
    layer.weight.finish_step();
  }
  EXPECT_TRUE(pretend::waits().empty());
  EXPECT_EQ(memory_stats(kPretendDevice).allocated_bytes, allocated);
}

}  // namespace
}  // namespace megalith
