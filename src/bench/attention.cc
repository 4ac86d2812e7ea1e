// megalith bench attention: attention against PyTorch's.
#include "ops/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "bench/bench.h"
#include "bench/cases.h"
#include "bench/report.h"
#include "cli/session.h"

namespace megalith {
namespace {

constexpr const char* kAttentionForm = "BxSxNxGxD";

struct AttentionBenchOptions : BenchOptions {
  std::vector<std::string> shapes;
  std::vector<std::string> mask{"causal", "full"};

  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field(
        "shapes", shapes,
        "What to measure, BxSxNxGxD,...: samples, tokens of one, query heads, KV heads, channels of a head. Default: "
        "the heads of the configuration at its micro-batch and sequence, and one sample four times as long.");
    v.field("mask", mask, "Which keys a query sees.").words({"causal", "full"});
  }

  std::vector<UserError> check() const {
    std::vector<UserError> errors = BenchOptions::check();
    for (const std::vector<int64_t>& sides : parse_shapes(shapes, kAttentionForm, errors)) {
      if (sides[2] % sides[3] == 0) continue;
      errors.emplace_back(fmt::format("shapes has {} KV heads for {} query heads", sides[3], sides[2]),
                          "use a number of KV heads that divides the number of query heads");
    }
    if (mask.empty()) errors.emplace_back("mask is empty", "use causal, full, or both");
    return errors;
  }
};

std::vector<AttentionShape> attention_shapes(const AttentionBenchOptions& options, const Resolved& run) {
  std::vector<UserError> errors;
  std::vector<std::vector<int64_t>> sizes = parse_shapes(options.shapes, kAttentionForm, errors);
  if (sizes.empty()) {
    const ModelConfig& model = run.config.model;
    const int64_t n = model.num_attention_heads, g = model.num_kv_heads(), d = model.query_head_dim();
    sizes = {{run.derived.micro_batch_size, run.derived.seq_length, n, g, d}, {1, 4 * run.derived.seq_length, n, g, d}};
  }
  std::vector<AttentionShape> shapes;
  for (const std::vector<int64_t>& size : sizes) {
    for (const std::string& mask : options.mask) {
      shapes.push_back({size[0], size[1], size[2], size[3], size[4], mask == "causal"});
    }
  }
  return shapes;
}

// Ours are (b, s, heads, d); PyTorch's heads come before the tokens.
at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool is_causal) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_mask=*/{},
                                          /*dropout_p=*/0.0, is_causal, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/q.size(2) != k.size(2));
}

}  // namespace

std::vector<BenchCase> attention_cases(const AttentionShape& shape, const BenchTensors& tensors, bool with_sdpa) {
  const auto [b, s, n, g, d, is_causal] = shape;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const auto samples = static_cast<double>(b), tokens = static_cast<double>(s), channels = static_cast<double>(d);
  const auto heads = static_cast<double>(n), groups = static_cast<double>(g);
  const double pairs = is_causal ? tokens * (tokens + 1) / 2 : tokens * tokens;
  const double product = 2 * samples * heads * channels * pairs;
  const auto element = static_cast<double>(tensors.element_bytes());
  const double q_bytes = samples * tokens * heads * channels * element;
  const double k_bytes = samples * tokens * groups * channels * element;
  const double lse_bytes = samples * heads * tokens * 4;
  const auto make_qkv = [b = b, s = s, n = n, g = g, d = d, &tensors] {
    return BenchInputs{tensors.normal({b, s, n, d}), tensors.normal({b, s, g, d}), tensors.normal({b, s, g, d})};
  };
  const ops::AttentionMask mask{.is_causal = is_causal};

  BenchCase forward{.name = is_causal ? "causal" : "full",
                    .shape = fmt::format("{}x{}x{}x{}x{}", b, s, n, g, d),
                    .pass = "forward",
                    .flops = 2 * product,
                    .bytes = 2 * q_bytes + 2 * k_bytes + lse_bytes,
                    .make_inputs = make_qkv,
                    .variants = both_kernels([scale, mask](const BenchInputs& in, Kernels kernels) {
                      ops::attention_forward(in[0], in[1], in[2], scale, mask, {}, kernels);
                    })};
  // The reference keeps scores and probabilities of all pairs in fp32.
  forward.workspace_bytes = 2 * samples * heads * tokens * tokens * 4;
  BenchCase backward = forward;
  backward.pass = "backward";
  backward.flops = 5 * product;
  backward.bytes = 4 * q_bytes + 4 * k_bytes + lse_bytes;  // dout, q, k, v, out, lse; dq, dk, dv
  // q, k, v, dout, out, lse; against PyTorch: leaves q, k, v and the result with its graph
  backward.make_inputs = [=] {
    BenchInputs inputs = make_qkv();
    inputs.push_back(tensors.normal(inputs[0].sizes()));
    auto [out, lse] = ops::attention_forward(inputs[0], inputs[1], inputs[2], scale, mask);
    inputs.push_back(std::move(out));
    inputs.push_back(std::move(lse));
    if (!with_sdpa) return inputs;
    at::AutoGradMode record(true);
    for (size_t i = 0; i < 3; ++i) inputs.push_back(inputs[i].detach().clone().requires_grad_());
    inputs.push_back(sdpa(inputs[6], inputs[7], inputs[8], mask.is_causal));
    return inputs;
  };
  backward.variants = both_kernels([scale, mask](const BenchInputs& in, Kernels kernels) {
    ops::attention_backward(in[3], in[0], in[1], in[2], in[4], in[5], scale, mask, {}, /*with_dbias=*/false, kernels);
  });
  if (with_sdpa) {
    forward.variants.push_back({"sdpa", [mask](const BenchInputs& in) { sdpa(in[0], in[1], in[2], mask.is_causal); }});
    backward.variants.push_back({"sdpa", [](const BenchInputs& in) {
                                   torch::autograd::grad({in[9]}, {in[6], in[7], in[8]}, {in[3].transpose(1, 2)},
                                                         /*retain_graph=*/true);
                                 }});
  }
  return {std::move(forward), std::move(backward)};
}

CommandOptions bench_attention_options() { return options_of<AttentionBenchOptions, Config>("bench attention"); }

int bench_attention(CommandContext& context) {
  AttentionBenchOptions options;
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options);
  if (resolved->wants_help) {
    return print_bench_help(
        context, *resolved,
        "megalith bench attention [--shapes BxSxNxGxD,...] [--mask causal,full] [--option value ...]");
  }
  const std::vector<AttentionShape> shapes = attention_shapes(options, *resolved);
  const Session session = start_session(context, std::move(resolved));
  const at::ScalarType dtype = session.resolved->derived.dtype;
  const BenchTensors tensors(dtype, session.device);
  std::vector<BenchCase> cases;
  for (const AttentionShape& shape : shapes) {
    for (BenchCase& bench_case : attention_cases(shape, tensors, /*with_sdpa=*/true)) {
      cases.push_back(std::move(bench_case));
    }
  }
  const std::vector<BenchMeasurement> measured =
      measure_cases(cases, "bench attention", session.device, options.iterations, options.warmup, context.log);
  BenchReport report{"attention", session.device, dtype, {}, {}};
  report.explanations = {
      how_measured(options),
      "shape: samples x tokens x query heads x KV heads x channels; sdpa: PyTorch's scaled_dot_product_attention",
      "TFLOP/s: two products forward and five backward, of the pairs of query and key that the mask lets through"};
  for (const BenchMeasurement& m : measured) {
    for (size_t i = 0; i < m.times.size(); ++i) {
      BenchRow row = measured_row(m, i);
      row[0] = text_cell("mask", "mask", m.bench_case->name);
      row.insert(row.begin(), text_cell("name", "", "attention"));
      row.push_back(ratio_cell(m, i, "sdpa"));
      report.rows.push_back(std::move(row));
    }
  }
  write_bench_report(report, options);
  return kExitSuccess;
}

}  // namespace megalith
