// megalith bench gemm: the matrix products of linear layers.
#include <algorithm>

#include "bench/bench.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "cli/session.h"
#include "nn/fp8_recipe.h"
#include "ops/linear/linear.h"

namespace megalith {
namespace {

constexpr const char* kGemmForm = "MxNxK";

struct GemmOptions : BenchOptions {
  std::vector<std::string> shapes;
  std::optional<int64_t> m, n, k;  // Primus's way to name one product

  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field(
        "shapes", shapes,
        "Products to measure, MxNxK,...: M tokens, N features out, K features in. Default: the linear layers of the "
        "configuration at its micro-batch and sequence.");
    v.field("m", m, "One product: its tokens. What is not given of m, n and k is 4096.")
        .at_least(1)
        .alias("M");
    v.field("n", n, "Its features out.").at_least(1).alias("N");
    v.field("k", k, "Its features in.").at_least(1).alias("K");
  }

  std::vector<UserError> check() const {
    std::vector<UserError> errors = BenchOptions::check();
    parse_shapes(shapes, kGemmForm, errors);
    if (!shapes.empty() && (m || n || k)) {
      errors.emplace_back("shapes and m, n or k are both given", "keep one of them");
    }
    return errors;
  }
};

struct GemmShape {
  std::string name;
  int64_t t, o, h;        // tokens, features out, features in
  bool is_plain = false;  // in every recipe, like the head
};

// The projections of an attention layer, under Megatron-LM's names.
std::vector<GemmShape> attention_gemm_shapes(const ModelConfig& model, int64_t t) {
  const int64_t h = model.hidden_size, n = model.num_attention_heads, g = model.num_kv_heads();
  if (!model.multi_latent_attention) {
    const int64_t d = model.head_dim();
    return {{"linear_qkv", t, (n + 2 * g) * d, h}, {"linear_proj", t, h, n * d}};
  }
  const int64_t q = n * model.query_head_dim(), kv = n * (model.qk_head_dim + model.v_head_dim);
  const int64_t kv_rank = model.kv_lora_rank;
  std::vector<GemmShape> shapes = {{"linear_kv_down_proj", t, kv_rank + model.qk_pos_emb_head_dim, h},
                                   {"linear_kv_up_proj", t, kv, kv_rank},
                                   {"linear_proj", t, h, n * model.v_head_dim}};
  if (model.q_lora_rank) {
    shapes.insert(shapes.begin(),
                  {{"linear_q_down_proj", t, *model.q_lora_rank, h}, {"linear_q_up_proj", t, q, *model.q_lora_rank}});
  } else {
    shapes.insert(shapes.begin(), {"linear_q_proj", t, q, h});
  }
  return shapes;
}

std::vector<GemmShape> gemm_shapes(const GemmOptions& options, const Resolved& run) {
  std::vector<UserError> errors;
  std::vector<GemmShape> shapes;
  for (const std::vector<int64_t>& sides : parse_shapes(options.shapes, kGemmForm, errors)) {
    shapes.push_back({"given", sides[0], sides[1], sides[2]});
  }
  if (options.m || options.n || options.k) {
    constexpr int64_t kSide = 4096;
    shapes.push_back({"given", options.m.value_or(kSide), options.n.value_or(kSide), options.k.value_or(kSide)});
  }
  if (!shapes.empty()) return shapes;
  const ModelConfig& model = run.config.model;
  const int64_t t = run.derived.micro_batch_size * run.derived.seq_length;
  const int64_t h = model.hidden_size, f = model.ffn_size();
  ModelConfig with_vocabulary = model;
  with_vocabulary.vocab_size = run.derived.vocab_size;
  shapes = attention_gemm_shapes(model, t);
  shapes.push_back({"linear_fc1", t, model.is_gated() ? 2 * f : f, h});
  shapes.push_back({"linear_fc2", t, h, f});
  shapes.push_back({"output_layer", t, with_vocabulary.padded_vocab_size(/*tp=*/1), h, /*is_plain=*/true});
  return shapes;
}

// Products of eight-bit operands; rounding is fp8_cast's, in bench ops. Delayed scaling multiplies as tensorwise does.
class EightBitProducts {
 public:
  // null: not requested
  static std::unique_ptr<EightBitProducts> make(const Fp8Options& options, at::Device device) {
    return options.is_on() ? std::make_unique<EightBitProducts>(options, device) : nullptr;
  }
  EightBitProducts(Fp8Options options, at::Device device)
      : name_(ops::gpu::fp8_products_of(device).are_made ? "fp8" : "fp8 widened") {
    if (options.fp8_recipe == "delayed") options.fp8_recipe = "tensorwise";
    recipe_ = make_recipe(options, Kernels::kFused, /*keeps_weights=*/false);
  }

  void take(BenchInputs& inputs, const at::Tensor& tensor, OperandRole role) const {
    const Operand operand = recipe_->take(tensor, role, {.is_for_wgrad = role != OperandRole::kWeight});
    for (const at::Tensor Operand::*part : kParts) {
      inputs.push_back((operand.*part).defined() ? operand.*part : at::empty({0}));
    }
  }
  // The variant that multiplies the operands after the first `num_before` inputs.
  BenchVariant variant(size_t num_before,
                       std::function<void(const MatmulRecipe& recipe, const BenchInputs& in, const Operand& first,
                                          const Operand& second)>
                           multiply,
                       at::ScalarType dtype) const {
    return {name_, [recipe = recipe_, num_before, dtype, multiply = std::move(multiply)](const BenchInputs& in) {
              multiply(*recipe, in, operand_at(in, num_before, dtype),
                       operand_at(in, num_before + std::size(kParts), dtype));
            }};
  }

 private:
  static constexpr at::Tensor Operand::*kParts[] = {&Operand::values,      &Operand::scale,      &Operand::wgrad_values,
                                                    &Operand::wgrad_scale, &Operand::transposed, &Operand::factor};

  static Operand operand_at(const BenchInputs& in, size_t first, at::ScalarType dtype) {
    Operand operand{.values = {}, .dtype = dtype};
    for (size_t i = 0; i < std::size(kParts); ++i) {
      const at::Tensor& part = in[first + i];
      if (part.dim() != 1 || part.numel() > 0) operand.*kParts[i] = part;
    }
    return operand;
  }

  std::string name_;
  std::shared_ptr<const MatmulRecipe> recipe_;
};

// eight_bits  null: not measured
std::vector<BenchCase> gemm_cases(const GemmShape& shape, const BenchTensors& tensors,
                                  const EightBitProducts* eight_bits) {
  const int64_t t = shape.t, o = shape.o, h = shape.h;
  const auto x_bytes = static_cast<double>(tensors.element_bytes()) * static_cast<double>(t) * static_cast<double>(h);
  const auto y_bytes = static_cast<double>(tensors.element_bytes()) * static_cast<double>(t) * static_cast<double>(o);
  const auto w_elements = static_cast<double>(o) * static_cast<double>(h);
  const double w_bytes = static_cast<double>(tensors.element_bytes()) * w_elements;
  const double all_bytes = x_bytes + y_bytes + w_bytes;
  const double std = 0.02;  // of weights, and of gradients, which are summed over all rounds
  BenchCase forward{.name = shape.name,
                    .shape = fmt::format("{}x{}x{}", t, o, h),
                    .pass = "forward",
                    .flops = 2 * static_cast<double>(t) * w_elements,
                    .bytes = all_bytes};
  BenchCase dgrad = forward, wgrad = forward;
  // Adds the operands in eight bits, if requested.
  using Roles = std::pair<OperandRole, OperandRole>;
  const auto with_eight_bits = [eight_bits](BenchInputs inputs, size_t num_before, Roles roles) {
    if (eight_bits == nullptr) return inputs;
    const at::Tensor first = inputs[num_before - 2], second = inputs[num_before - 1];
    eight_bits->take(inputs, first, roles.first);
    eight_bits->take(inputs, second, roles.second);
    return inputs;
  };
  const at::ScalarType dtype = tensors.dtype();
  forward.make_inputs = [=, &tensors] {
    return with_eight_bits({tensors.normal({t, h}), tensors.normal({o, h}, std)}, 2,
                           {OperandRole::kInput, OperandRole::kWeight});
  };
  forward.variants = both_kernels(
      [](const BenchInputs& in, Kernels kernels) { ops::linear_forward(in[0], in[1], /*bias=*/{}, kernels); });
  dgrad.pass = "dgrad";
  dgrad.make_inputs = [=, &tensors] {
    return with_eight_bits({tensors.normal({t, o}), tensors.normal({o, h}, std)}, 2,
                           {OperandRole::kGradient, OperandRole::kWeight});
  };
  dgrad.variants =
      both_kernels([](const BenchInputs& in, Kernels kernels) { ops::linear_dgrad(in[0], in[1], kernels); });
  wgrad.pass = "wgrad";
  wgrad.bytes = x_bytes + y_bytes + 2 * 4 * w_elements;  // added in fp32
  wgrad.make_inputs = [=, &tensors] {
    return with_eight_bits({tensors.wide_normal({o, h}), tensors.normal({t, o}, std), tensors.normal({t, h})}, 3,
                           {OperandRole::kGradient, OperandRole::kInput});
  };
  wgrad.variants = both_kernels([](const BenchInputs& in, Kernels kernels) {
    ops::linear_wgrad_(in[0], in[1], in[2], /*accumulate=*/true, kernels);
  });
  if (eight_bits != nullptr) {
    forward.variants.push_back(eight_bits->variant(
        2, [](const auto& recipe, const auto&, const auto& x, const auto& w) { recipe.forward(x, w, /*bias=*/{}); },
        dtype));
    dgrad.variants.push_back(eight_bits->variant(
        2, [](const auto& recipe, const auto&, const auto& dy, const auto& w) { recipe.dgrad(dy, w); }, dtype));
    wgrad.variants.push_back(eight_bits->variant(
        3,
        [](const auto& recipe, const auto& in, const auto& dy, const auto& x) {
          recipe.wgrad_(in[0], dy, x, /*accumulate=*/true);
        },
        dtype));
    // Widened if no library multiplies them.
    for (BenchCase* each : {&forward, &dgrad, &wgrad}) each->workspace_bytes = 2 * all_bytes;
  }
  return {std::move(forward), std::move(dgrad), std::move(wgrad)};
}

}  // namespace

CommandOptions bench_gemm_options() { return options_of<GemmOptions, Config>("bench gemm"); }

int bench_gemm(CommandContext& context) {
  GemmOptions options;
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options);
  if (resolved->wants_help) {
    return print_bench_help(context, *resolved,
                            "megalith bench gemm [--shapes MxNxK,...] [--config FILE] [--option value ...]");
  }
  const std::vector<GemmShape> shapes = gemm_shapes(options, *resolved);
  const Session session = start_session(context, std::move(resolved));
  const at::ScalarType dtype = session.resolved->derived.dtype;
  const BenchTensors tensors(dtype, session.device);
  std::vector<BenchCase> cases;
  const auto eight_bits = EightBitProducts::make(session.resolved->config.fp8, session.device);
  for (const GemmShape& shape : shapes) {
    const EightBitProducts* const of_shape = shape.is_plain ? nullptr : eight_bits.get();
    for (BenchCase& bench_case : gemm_cases(shape, tensors, of_shape)) cases.push_back(std::move(bench_case));
  }
  const std::vector<BenchMeasurement> measured =
      measure_cases(cases, "bench gemm", session.device, options.iterations, options.warmup, context.log);

  double best = 0;  // operations per millisecond
  for (const BenchMeasurement& m : measured) {
    for (const BenchTime& time : m.times) best = std::max(best, m.bench_case->flops / time.ms);
  }
  BenchReport report{"gemm", session.device, dtype, {}, {}};
  report.explanations = {
      how_measured(options), "shape: M tokens x N features out x K features in; wgrad adds to a gradient in fp32",
      "TFLOP/s: 2 M N K operations; GB/s: every input read once, every result written once; of best: "
      "of the highest rate here"};
  if (eight_bits) {
    report.explanations.push_back(
        "fp8: of operands that have eight bits already (what rounds them: fp8_cast, bench ops); widened: no library "
        "here multiplies eight bits");
  }
  for (const BenchMeasurement& m : measured) {
    for (size_t i = 0; i < m.times.size(); ++i) {
      BenchRow row = measured_row(m, i);
      row.push_back(number_cell("fraction_of_best", "of best", m.bench_case->flops / m.times[i].ms / best));
      row.push_back(ratio_cell(m, i, "reference"));
      report.rows.push_back(std::move(row));
    }
  }
  write_bench_report(report, options);
  return kExitSuccess;
}

}  // namespace megalith
