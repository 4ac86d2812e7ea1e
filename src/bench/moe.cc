// megalith bench moe: a layer's experts against a dense MLP of the same active work. Letters: t tokens, h hidden, f ffn
// of an expert, e experts, k experts per token.
#include <ATen/ATen.h>

#include "bench/bench.h"
#include "bench/cases.h"
#include "bench/report.h"
#include "cli/session.h"
#include "ops/expert_activation/expert_activation.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/swiglu/swiglu.h"
#include "ops/token_permutation/token_permutation.h"

namespace megalith {
namespace {

using at::Tensor;

constexpr const char* kMoeForm = "TxHxFxExK";

struct MoeBenchOptions : BenchOptions {
  std::vector<std::string> shapes{"4096x1024x2048x8x2"};
  std::vector<std::string> routing{"random", "uneven"};

  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field("shapes", shapes,
            "What to measure, TxHxFxExK,...: tokens, hidden, ffn of an expert, experts, experts of a token.");
    v.field("routing", routing,
            "Which experts tokens go to. random: each is as likely. uneven: every token goes to the first, and none to "
            "the last two.")
        .words({"random", "uneven"});
  }

  std::vector<UserError> check() const {
    std::vector<UserError> errors = BenchOptions::check();
    for (const std::vector<int64_t>& sides : parse_shapes(shapes, kMoeForm, errors)) {
      if (sides[3] >= sides[4] + 2) continue;
      errors.emplace_back(fmt::format("shapes has {} experts, of which each token goes to {}", sides[3], sides[4]),
                          "use at least two more experts than a token goes to: uneven routing leaves two empty");
    }
    if (shapes.empty()) errors.emplace_back("shapes is empty", "give TxHxFxExK");
    if (routing.empty()) errors.emplace_back("routing is empty", "use random, uneven, or both");
    return errors;
  }
};

// The order of a case's inputs.
struct MoeInput {
  enum : size_t {
    kX,
    kOut,
    kExperts,
    kProbs,
    kFc1,
    kFc2,
    kFc1Grad,
    kFc2Grad,
    kDense1,
    kDense2,
    kDense1Grad,
    kDense2Grad,
    kCount
  };
};

// Forward and backward from the router's choice to each token's sum over experts: gradients of x, of the router's
// probabilities and of the weights.
void run_experts(const BenchInputs& in, Kernels kernels) {
  const int64_t num_experts = in[MoeInput::kFc1].size(0), num_pairs = in[MoeInput::kProbs].numel();
  const ops::ExpertOrder order = ops::sort_by_expert(in[MoeInput::kExperts], num_experts, {}, kernels);
  const Tensor weights =
      ops::permute_tokens(in[MoeInput::kProbs].view({num_pairs, 1}), order.pairs, kernels).view(num_pairs);
  const Tensor rows = ops::permute_tokens(in[MoeInput::kX], order.source, kernels);
  const Tensor gate_up = ops::grouped_linear_forward(rows, in[MoeInput::kFc1], order.offsets, kernels);
  const Tensor activation = ops::expert_activation(gate_up, weights, {}, kernels);
  const Tensor out = ops::grouped_linear_forward(activation, in[MoeInput::kFc2], order.offsets, kernels);
  ops::combine_tokens(out, order.slots, {}, kernels);

  const Tensor dout = ops::permute_tokens(in[MoeInput::kOut], order.source, kernels);
  const Tensor dactivation = ops::grouped_linear_dgrad(dout, in[MoeInput::kFc2], order.offsets, kernels);
  ops::grouped_linear_wgrad_(in[MoeInput::kFc2Grad], dout, activation, order.offsets, /*accumulate=*/true, kernels);
  const auto [dgate_up, dweights] = ops::expert_activation_backward(dactivation, gate_up, weights, {}, kernels);
  const Tensor drows = ops::grouped_linear_dgrad(dgate_up, in[MoeInput::kFc1], order.offsets, kernels);
  ops::grouped_linear_wgrad_(in[MoeInput::kFc1Grad], dgate_up, rows, order.offsets, /*accumulate=*/true, kernels);
  ops::combine_tokens(drows, order.slots, {}, kernels);
  ops::permute_tokens(dweights.view({num_pairs, 1}), order.slots.view(num_pairs), kernels);
}

// The same for a dense MLP, k times as wide as an expert.
void run_dense(const BenchInputs& in) {
  const Tensor gate_up = ops::linear_forward(in[MoeInput::kX], in[MoeInput::kDense1]);
  const Tensor activation = ops::swiglu(gate_up);
  ops::linear_forward(activation, in[MoeInput::kDense2]);
  const Tensor dactivation = ops::linear_dgrad(in[MoeInput::kOut], in[MoeInput::kDense2]);
  ops::linear_wgrad_(in[MoeInput::kDense2Grad], in[MoeInput::kOut], activation);
  const Tensor dgate_up = ops::swiglu_backward(dactivation, gate_up);
  ops::linear_dgrad(dgate_up, in[MoeInput::kDense1]);
  ops::linear_wgrad_(in[MoeInput::kDense1Grad], dgate_up, in[MoeInput::kX]);
}

// (t, k) distinct experts per token
Tensor choose_experts(int64_t t, int64_t e, int64_t k, bool is_uneven) {
  Tensor scores = at::rand({t, e});
  if (is_uneven) {
    scores.select(1, 0).fill_(2);
    scores.narrow(1, e - 2, 2).fill_(-1);
  }
  return std::get<1>(scores.topk(k, 1)).contiguous();
}

BenchCase moe_case(const std::vector<int64_t>& sides, const std::string& routing, const BenchTensors& tensors,
                   at::Device device) {
  const int64_t t = sides[0], h = sides[1], f = sides[2], e = sides[3], k = sides[4];
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double element = real(tensors.element_bytes()), wide = 4;
  BenchCase result{
      .name = routing,
      .shape = fmt::format("{}x{}x{}x{}x{}", t, h, f, e, k),
      .pass = "forward and backward",
      .flops = 3 * 6 * real(t) * real(k) * real(h) * real(f),
      // x, its gradient and the result; weights twice; gradients of weights read and written
      .bytes = 3 * real(t) * real(h) * element + 3 * real(e) * real(f) * real(h) * (2 * element + 2 * wide),
      .make_inputs = {},
      .variants = {{"fused", [](const BenchInputs& in) { run_experts(in, Kernels::kFused); }},
                   {"dense", run_dense},
                   {"reference", [](const BenchInputs& in) { run_experts(in, Kernels::kReference); }}}};
  // Rows and intermediates, with gradients.
  result.workspace_bytes = real(t) * real(k) * element * (4 * real(h) + 6 * real(f));
  result.make_inputs = [=, &tensors] {
    constexpr double kStd = 0.02;
    BenchInputs in(MoeInput::kCount);
    in[MoeInput::kX] = tensors.normal({t, h});
    in[MoeInput::kOut] = tensors.normal({t, h});
    in[MoeInput::kExperts] = choose_experts(t, e, k, routing == "uneven").to(device);
    in[MoeInput::kProbs] = tensors.full({t, k}, 1.0 / real(k));
    in[MoeInput::kFc1] = tensors.normal({e, 2 * f, h}, kStd);
    in[MoeInput::kFc2] = tensors.normal({e, h, f}, kStd);
    in[MoeInput::kFc1Grad] = tensors.wide_normal({e, 2 * f, h});
    in[MoeInput::kFc2Grad] = tensors.wide_normal({e, h, f});
    in[MoeInput::kDense1] = tensors.normal({2 * k * f, h}, kStd);
    in[MoeInput::kDense2] = tensors.normal({h, k * f}, kStd);
    in[MoeInput::kDense1Grad] = tensors.wide_normal({2 * k * f, h});
    in[MoeInput::kDense2Grad] = tensors.wide_normal({h, k * f});
    return in;
  };
  return result;
}

}  // namespace

CommandOptions bench_moe_options() { return options_of<MoeBenchOptions, Config>("bench moe"); }

int bench_moe(CommandContext& context) {
  MoeBenchOptions options;
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options);
  if (resolved->wants_help) {
    return print_bench_help(
        context, *resolved,
        "megalith bench moe [--shapes TxHxFxExK,...] [--routing random,uneven] [--option value ...]");
  }
  const Session session = start_session(context, std::move(resolved));
  const at::ScalarType dtype = session.resolved->derived.dtype;
  const BenchTensors tensors(dtype, session.device);
  std::vector<UserError> checked;
  std::vector<BenchCase> cases;
  for (const std::vector<int64_t>& sides : parse_shapes(options.shapes, kMoeForm, checked)) {
    for (const std::string& routing : options.routing) {
      cases.push_back(moe_case(sides, routing, tensors, session.device));
    }
  }
  const std::vector<BenchMeasurement> measured =
      measure_cases(cases, "bench moe", session.device, options.iterations, options.warmup, context.log);
  BenchReport report{"moe", session.device, dtype, {}, {}};
  report.explanations = {
      how_measured(options), "shape: tokens x hidden x ffn of an expert x experts x experts of a token",
      "from the router's choice to the sum of a token's experts, and back; dense: an MLP for every token, as wide as\n"
      "the experts of a token together"};
  for (const BenchMeasurement& m : measured) {
    for (size_t i = 0; i < m.times.size(); ++i) {
      BenchRow row = measured_row(m, i);
      row[0] = text_cell("routing", "routing", m.bench_case->name);
      row.insert(row.begin(), text_cell("name", "", "moe"));
      row.push_back(ratio_cell(m, i, "dense"));
      report.rows.push_back(std::move(row));
    }
  }
  write_bench_report(report, options);
  return kExitSuccess;
}

}  // namespace megalith
