#include "train/attention_choice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "device/stream.h"
#include "ops/attention/plan.h"

namespace megalith {
namespace {

using ops::AttentionLibraries;
using ops::AttentionLibrary;

AttentionLibraries candidates_of(const RuntimeOptions& runtime) {
  switch (runtime.attention_backend) {
    case AttentionBackend::kCudnn:
    case AttentionBackend::kFused:
      return {AttentionLibrary::kCudnn};
    case AttentionBackend::kFlash:
      return {AttentionLibrary::kFlash};
    case AttentionBackend::kReference:
    case AttentionBackend::kUnfused:
    case AttentionBackend::kLocal:
      return {};
    case AttentionBackend::kAuto:
      break;
  }
  // cuDNN's backward sums in no fixed order; flash attention's is deterministic in LibTorch's deterministic mode.
  if (runtime.device.deterministic_mode) return {AttentionLibrary::kFlash};
  return {AttentionLibrary::kCudnn, AttentionLibrary::kFlash};
}

// One layer's attention over a microbatch on this rank.
struct LayerShape {
  ops::AttentionShape shape;
  ops::MaskForm form;
};

// The common window; 0 if some layer is global, the slowest.
int64_t common_window(const ModelConfig& model) {
  const std::vector<int64_t> layers = model.layers_with_window();
  return std::find(layers.begin(), layers.end(), 0) == layers.end() ? model.attention_window() : 0;
}

LayerShape layer_shape_of(const Resolved& resolved) {
  const ModelConfig& model = resolved.config.model;
  const Derived& d = resolved.derived;
  const int64_t tp = resolved.config.parallel.tensor_model_parallel_size;
  const int64_t s = std::max<int64_t>(d.seq_length / resolved.config.parallel.context_parallel_size, 1);
  LayerShape layer{.shape = {.b = d.micro_batch_size,
                             .sq = s,
                             .sk = s,
                             .n = std::max<int64_t>(model.num_attention_heads / tp, 1),
                             .g = 1,
                             .d = model.query_head_dim(),
                             .dv = model.value_head_dim(),
                             .dtype = d.dtype,
                             .has_dropout = model.attention_dropout > 0,
                             .has_softcap = model.attn_logit_softcapping > 0},
                   .form = {model.is_causal(), common_window(model), {}}};
  // Latent attention has a key per query head.
  layer.shape.g = model.multi_latent_attention ? layer.shape.n : std::max<int64_t>(model.num_kv_heads() / tp, 1);
  layer.form.runs.queries = layer.form.runs.keys = {{0, s}};
  if (d.data.reset_attention_mask) {
    layer.form.runs.documents.assign(static_cast<size_t>(d.micro_batch_size), {0, (s + 1) / 2});
  }
  return layer;
}

// Whole-row attention, forward and backward, by one library.
class Trial {
 public:
  Trial(const LayerShape& layer, at::Device device)
      : mask_{.is_causal = layer.form.is_causal, .window = layer.form.window}, device_(device) {
    const ops::AttentionShape& s = layer.shape;
    const auto options = at::TensorOptions(s.dtype).device(device);
    q_ = at::randn({s.b, s.sq, s.n, s.d}, options);
    k_ = at::randn({s.b, s.sk, s.g, s.d}, options);
    v_ = at::randn({s.b, s.sk, s.g, s.dv}, options);
  }

  // Milliseconds per call over three, after a warm-up; 0 on a device without timed events. c10::Error if the library
  // does not run.
  double measure(AttentionLibrary library) const {
    run(library);
    synchronize(device_);
    if (!device_.is_cuda()) return 0;
    constexpr int kCalls = 3;
    StreamEvent begin(device_, /*has_timing=*/true), end(device_, /*has_timing=*/true);
    begin.record(current_stream(device_));
    for (int i = 0; i < kCalls; ++i) run(library);
    end.record(current_stream(device_));
    end.wait();
    return begin.elapsed_ms(end) / kCalls;
  }

 private:
  void run(AttentionLibrary library) const {
    const ops::AttentionKernels kernels(Kernels::kFused, {library});
    const double scale = 1 / std::sqrt(static_cast<double>(q_.size(3)));
    const auto [out, lse] = ops::attention_forward(q_, k_, v_, scale, mask_, {}, kernels);
    ops::attention_backward(out, q_, k_, v_, out, lse, scale, mask_, {}, false, kernels);
  }

  ops::AttentionMask mask_;
  at::Device device_;
  at::Tensor q_, k_, v_;
};

struct Measured {
  AttentionLibrary library;
  double ms = 0;
  std::string failure;  // empty: it runs
};

Measured try_library(AttentionLibrary library, const LayerShape& layer, at::Device device) {
  Measured measured{library, 0, ""};
  try {
    measured.ms = Trial(layer, device).measure(library);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    measured.failure = what.substr(0, what.find('\n'));
  }
  return measured;
}

// By preference. The default first choice loses only to one this much faster, so near-equal times choose alike in every
// run.
constexpr double kMuchSlower = 1.05;

AttentionLibraries order_of(const std::vector<Measured>& measured) {
  AttentionLibraries order;
  double best = 0;
  for (const Measured& one : measured) {
    if (!one.failure.empty()) continue;
    const bool is_first = order.empty() || best > kMuchSlower * one.ms;
    order.insert(is_first ? order.begin() : order.end(), one.library);
    if (is_first) best = one.ms;
  }
  return order;
}

std::string text_of(const std::vector<Measured>& measured) {
  std::string text;
  for (const Measured& one : measured) {
    if (!text.empty()) text += ", ";
    if (!one.failure.empty()) {
      text += fmt::format("{} does not run here: {}", name_of(one.library), one.failure);
    } else if (one.ms > 0) {
      text += fmt::format("{} {:.2f} ms a layer", name_of(one.library), one.ms);
    }
  }
  return text.empty() ? text : fmt::format(" ({})", text);
}

std::string servers_text(const ops::AttentionPlan& plan) {
  if (!plan.reason.empty()) return fmt::format("the reference, because {}; it keeps a matrix of scores", plan.reason);
  std::string text;
  for (const ops::VendorCall& call : plan.calls) {
    const std::string name = name_of(call.library);
    if (text.find(name) == std::string::npos) text += (text.empty() ? "" : " and ") + name;
  }
  return text;
}

}  // namespace

std::vector<UserError> check_attention_backend(const RuntimeOptions& runtime, std::vector<std::string>& notes) {
  using enum AttentionBackend;
  const AttentionBackend backend = runtime.attention_backend;
  if (backend == kFused) notes.emplace_back("attention_backend fused is cudnn here");
  if (backend == kUnfused) notes.emplace_back("attention_backend unfused is reference here");
  if (backend == kLocal) notes.emplace_back("attention_backend local is reference here");
  if (!runtime.device.deterministic_mode || (backend != kCudnn && backend != kFused)) return {};
  return {UserError("attention_backend cudnn with deterministic_mode: cuDNN's backward adds in no fixed order",
                    "set attention_backend to auto or flash")};
}

AttentionChoice choose_attention(const Resolved& resolved, at::Device device) {
  const RuntimeOptions& runtime = resolved.config.runtime;
  if (device.is_cpu() || device.is_meta() || runtime.kernels == Kernels::kReference) return {};
  const AttentionLibraries candidates = candidates_of(runtime);
  if (candidates.empty()) return {.libraries = {}, .text = "the reference, as attention_backend says"};
  const LayerShape layer = layer_shape_of(resolved);

  // Whole rows without dropout, as in evaluation, decide which libraries run here.
  LayerShape plain = layer;
  plain.shape.has_dropout = false;
  plain.form.runs.documents.clear();
  std::vector<Measured> measured;
  for (const AttentionLibrary library : candidates) {
    if (!plan_attention(plain.form, plain.shape, {library}).reason.empty()) continue;
    measured.push_back(try_library(library, plain, device));
    if (candidates.size() > 1 || measured.back().failure.empty()) continue;
    throw UserError(
        fmt::format("attention_backend: {} does not run on this device: {}", name_of(library), measured.back().failure),
        "set attention_backend to auto, or to reference");
  }
  AttentionChoice choice{.libraries = order_of(measured), .text = ""};
  if (measured.empty()) {
    choice.text = servers_text(plan_attention(layer.form, layer.shape, candidates));
  } else if (choice.libraries.empty()) {
    choice.text = "the reference" + text_of(measured);
  } else {
    choice.text = servers_text(plan_attention(layer.form, layer.shape, choice.libraries)) + text_of(measured);
  }
  return choice;
}

}  // namespace megalith
