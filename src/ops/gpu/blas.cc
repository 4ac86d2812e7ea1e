#include "ops/gpu/blas.h"

#ifdef MEGALITH_BLAS

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/gpu/blas_library.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kTunedChoices = 16;

struct Choice {
  lt::Algorithm algorithm;
  int64_t workspace_bytes;
};

struct BlasDevice {
  lt::Handle handle = nullptr;
  ProductCapability capability;
  bool has_fnuz = false;
  int64_t workspace_bytes = 0;
  std::string name;  // "NVIDIA H200, sm_90"
};

struct Blas {
  lt::Functions lt;
  bool is_loaded = lt.load();
  std::mutex mutex;  // of the rest
  std::map<c10::DeviceIndex, BlasDevice> devices;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, at::Tensor> workspaces;
  std::map<std::pair<c10::DeviceIndex, ProductCall>, std::optional<Choice>> choices;  // nullopt: none
  GemmTuningOptions options;
  TunedProducts tuned;
};
Blas& blas() {
  static auto* const instance = new Blas;  // never destroyed: the device may be gone
  return *instance;
}

void check(lt::Status status, const char* what) {
  if (status == lt::kSuccess) return;
  throw InternalError(fmt::format("{}: {} failed with status {}", lt::kName, what, static_cast<int>(status)));
}

template <typename Object, typename Destroy>
class Owned {
 public:
  explicit Owned(Destroy* destroy) : destroy_(destroy) {}
  ~Owned() {
    if (object_ != nullptr) destroy_(object_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Object* place() { return &object_; }
  operator Object() const { return object_; }

 private:
  Object object_ = nullptr;
  Destroy* destroy_;
};

struct Pointers {
  const void *a, *b, *bias, *scale_a, *scale_b;  // as in the call; null: absent
  void* c;
};

class Description {
 public:
  Description(const Blas& blas, const BlasDevice& device, const ProductCall& call, const Pointers& pointers)
      : blas_(blas),
        device_(device),
        accumulate_(call.accumulate),
        description_(blas.lt.destroy_description),
        a_(blas.lt.destroy_layout),
        b_(blas.lt.destroy_layout),
        c_(blas.lt.destroy_layout) {
    const lt::Functions& lt = blas.lt;
    check(lt::create_description(lt, description_.place(), data_type(ProductType::kFloat32)), "a description");
    set(lt::kTransposeA, call.transposes_a ? lt::kTransposed : lt::kPlain);
    set(lt::kTransposeB, call.transposes_b ? lt::kTransposed : lt::kPlain);
    if (call.has_bias) {
      set(lt::kEpilogue, lt::kAddsBias);
      set(lt::kBiasPointer, pointers.bias);
      set(lt::kBiasType, data_type(call.c.type));
    }
    if (pointers.scale_a != nullptr) set(lt::kScaleA, pointers.scale_a);
    if (pointers.scale_b != nullptr) set(lt::kScaleB, pointers.scale_b);
    lt::set_only_nvidias(lt, description_, call, pointers.scale_a != nullptr);
    lay(a_, call.a);
    lay(b_, call.b);
    lay(c_, call.c);
  }

  std::vector<Choice> heuristics(const ProductCall& call, int count) const {
    const lt::Functions& lt = blas_.lt;
    Owned<lt::Preference, std::remove_pointer_t<decltype(lt.destroy_preference)>> preference(lt.destroy_preference);
    check(lt.create_preference(preference.place()), "a preference");
    const auto bytes = static_cast<uint64_t>(device_.workspace_bytes);
    check(lt.prefer(preference, lt::kMostWorkspace, &bytes, sizeof(bytes)), "a preference's workspace");
    lt::prefer_only_nvidias(lt, preference, call);
    std::vector<lt::Heuristic> found(static_cast<size_t>(count));
    int num_found = 0;
    // Unsupported.
    if (lt.get_heuristics(device_.handle, description_, a_, b_, c_, c_, preference, count, found.data(), &num_found) !=
        lt::kSuccess) {
      return {};
    }
    std::vector<Choice> choices;
    for (int i = 0; i < num_found; ++i) {
      const lt::Heuristic& one = found[static_cast<size_t>(i)];
      if (one.state == lt::kSuccess) choices.push_back({one.algo, static_cast<int64_t>(one.workspaceSize)});
    }
    return choices;
  }

  lt::Status run(const Pointers& pointers, const Choice& choice, const at::Tensor& workspace,
                 lt::RuntimeStream stream) const {
    const float alpha = 1, beta = accumulate_ ? 1 : 0;
    return blas_.lt.multiply(device_.handle, description_, &alpha, pointers.a, a_, pointers.b, b_, &beta, pointers.c,
                             c_, pointers.c, c_, &choice.algorithm, workspace.mutable_data_ptr(),
                             static_cast<size_t>(workspace.numel()), stream);
  }

 private:
  lt::DataType data_type(ProductType type) const { return lt::data_type(type, device_.has_fnuz); }
  template <typename Attribute, typename T>
  void set(Attribute attribute, const T& value) {
    check(blas_.lt.set(description_, attribute, &value, sizeof(value)), "an attribute");
  }
  template <typename OwnedLayout>
  void lay(OwnedLayout& layout, const CallMatrix& matrix) {
    check(blas_.lt.create_layout(layout.place(), data_type(matrix.type), static_cast<uint64_t>(matrix.rows),
                                 static_cast<uint64_t>(matrix.columns), matrix.leading),
          "a layout");
  }

  const Blas& blas_;
  const BlasDevice& device_;
  bool accumulate_;
  Owned<lt::Description, std::remove_pointer_t<decltype(lt::Functions::destroy_description)>> description_;
  Owned<lt::Layout, std::remove_pointer_t<decltype(lt::Functions::destroy_layout)>> a_, b_, c_;
};

std::optional<ProductType> product_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ProductType::kFloat32;
    case at::kBFloat16:
      return ProductType::kBFloat16;
    case at::kHalf:
      return ProductType::kFloat16;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
      return ProductType::kFloat8E4m3;
    case at::kFloat8_e5m2:
    case at::kFloat8_e5m2fnuz:
      return ProductType::kFloat8E5m2;
    default:
      return std::nullopt;
  }
}
at::ScalarType dtype_of(ProductType type, bool has_fnuz) {
  switch (type) {
    case ProductType::kFloat32:
      return at::kFloat;
    case ProductType::kBFloat16:
      return at::kBFloat16;
    case ProductType::kFloat16:
      return at::kHalf;
    case ProductType::kFloat8E4m3:
      return has_fnuz ? at::kFloat8_e4m3fnuz : at::kFloat8_e4m3fn;
    default:
      return has_fnuz ? at::kFloat8_e5m2fnuz : at::kFloat8_e5m2;
  }
}

std::optional<ProductMatrix> matrix_of(const at::Tensor& x) {
  const auto type = product_type(x.scalar_type());
  if (!type.has_value() || x.dim() != 2) return std::nullopt;
  return ProductMatrix{*type,       x.size(0),   x.size(1),
                       x.stride(0), x.stride(1), reinterpret_cast<uint64_t>(x.const_data_ptr())};
}

// AMD's gfx942 reads other numbers from the same bits.
bool is_readable(const at::Tensor& x, const BlasDevice& device) {
  const bool is_fnuz = x.scalar_type() == at::kFloat8_e4m3fnuz || x.scalar_type() == at::kFloat8_e5m2fnuz;
  return !at::isFloat8Type(x.scalar_type()) || is_fnuz == device.has_fnuz;
}

const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

const BlasDevice& device_at(Blas& blas, c10::DeviceIndex index) {
  BlasDevice& device = blas.devices[index];
  if (device.handle != nullptr) return device;
  lt::DeviceProperties properties{};
  if (static_cast<int>(blas.lt.get_properties(&properties, index)) != 0) {
    throw InternalError(fmt::format("{}: device {} tells nothing of itself", lt::kName, index));
  }
  device.capability = lt::capability_of(blas.lt, properties);
  device.has_fnuz = lt::has_fnuz(properties);
  device.workspace_bytes = lt::workspace_bytes_of(properties);
  device.name = fmt::format("{}, {}", properties.name, lt::architecture_of(properties));
  check(blas.lt.create(&device.handle), "a handle");
  return device;
}

const at::Tensor& workspace_of(Blas& blas, const BlasDevice& device, const at::Tensor& x, c10::StreamId stream) {
  at::Tensor& workspace = blas.workspaces[{x.device().index(), stream}];
  if (!workspace.defined()) workspace = at::empty({device.workspace_bytes}, x.options().dtype(at::kByte));
  return workspace;
}

std::optional<Choice> tuned_choice(const Blas& blas, const ProductCall& call) {
  const auto found = blas.tuned.algorithms.find(name_of(call));
  if (found == blas.tuned.algorithms.end()) return std::nullopt;
  Choice choice{{}, found->second.workspace_bytes};
  const auto bytes = found->second.words.size() * sizeof(uint64_t);
  if (bytes < sizeof(choice.algorithm) || bytes >= sizeof(choice.algorithm) + sizeof(uint64_t)) {
    throw UserError(fmt::format("{}: the algorithm of \"{}\" has {} words, and one of {} has {}",
                                blas.options.gemm_tuning_file, name_of(call), found->second.words.size(), lt::kName,
                                (sizeof(choice.algorithm) + sizeof(uint64_t) - 1) / sizeof(uint64_t)),
                    "remove the file and tune again");
  }
  std::memcpy(static_cast<void*>(&choice.algorithm), found->second.words.data(), sizeof(choice.algorithm));
  return choice;
}

// Own operands of real size: timing depends on numbers, and an untrained model's are not representative.
class Trial {
 public:
  Trial(Blas& blas, const BlasDevice& device, const ProductCall& call, const at::Tensor& like)
      : a_(random(call.a, device, like)),
        b_(random(call.b, device, like)),
        c_(random(call.c, device, like)),
        bias_(call.has_bias ? at::zeros({call.m}, c_.options()) : at::Tensor()),
        scale_a_(scales(call.scaling_a, call.m, call.k, like)),
        scale_b_(scales(call.scaling_b, call.n, call.k, like)),
        pointers_{a_.const_data_ptr(),    b_.const_data_ptr(),    data_or_null(bias_),
                  data_or_null(scale_a_), data_or_null(scale_b_), c_.mutable_data_ptr()},
        description_(blas, device, call, pointers_),
        index_(like.device().index()) {}

  // Microseconds per call, the least of three rounds; nothing if it does not run.
  std::optional<double> time(const Choice& choice, const at::Tensor& workspace, lt::RuntimeStream stream) const {
    using Clock = std::chrono::steady_clock;
    constexpr double kRoundUs = 1000;
    const auto run = [&](int times) {
      const auto begin = Clock::now();
      for (int i = 0; i < times; ++i) description_.run(pointers_, choice, workspace, stream);
      at::accelerator::synchronizeDevice(index_);
      return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / times;
    };
    if (description_.run(pointers_, choice, workspace, stream) != lt::kSuccess) return std::nullopt;
    at::accelerator::synchronizeDevice(index_);
    const double once = run(1);
    const int times = std::clamp(static_cast<int>(kRoundUs / (once + 1)), 1, 50);
    return std::min({run(times), run(times), run(times)});
  }

 private:
  static at::Tensor random(const CallMatrix& matrix, const BlasDevice& device, const at::Tensor& like) {
    return at::randn({matrix.leading * matrix.columns}, like.options().dtype(at::kFloat))
        .to(dtype_of(matrix.type, device.has_fnuz));
  }

  // For either kind of block.
  static at::Tensor scales(ProductScaling scaling, int64_t rows, int64_t sum, const at::Tensor& like) {
    if (scaling == ProductScaling::kWhole) return {};
    return at::ones({rows, sum / 128 + 4}, like.options().dtype(at::kFloat));
  }

  at::Tensor a_, b_, c_, bias_, scale_a_, scale_b_;
  Pointers pointers_;
  Description description_;
  c10::DeviceIndex index_;
};

// The fastest of the library's first choices, added to the file.
Choice tune(Blas& blas, const BlasDevice& device, const ProductCall& call, const std::vector<Choice>& choices,
            const at::Tensor& like, const at::Tensor& workspace, lt::RuntimeStream stream) {
  const Trial trial(blas, device, call, like);
  Choice best = choices.front();
  std::optional<double> first_us, best_us;
  for (const Choice& choice : choices) {
    const std::optional<double> time_us = trial.time(choice, workspace, stream);
    if (!time_us.has_value()) continue;
    if (!first_us.has_value()) first_us = time_us;
    if (best_us.has_value() && *time_us >= *best_us) continue;
    best = choice;
    best_us = time_us;
  }
  TunedAlgorithm& tuned = blas.tuned.algorithms[name_of(call)];
  tuned.words.assign((sizeof(best.algorithm) + sizeof(uint64_t) - 1) / sizeof(uint64_t), 0);
  std::memcpy(tuned.words.data(), &best.algorithm, sizeof(best.algorithm));
  tuned.workspace_bytes = best.workspace_bytes;
  tuned.time_us = best_us.value_or(0);
  tuned.first_time_us = first_us.value_or(0);
  add_tuned_products(blas.options.gemm_tuning_file, blas.tuned);
  return best;
}

std::optional<Choice> choose(Blas& blas, const BlasDevice& device, const ProductCall& call,
                             const Description& description, const at::Tensor& like, const at::Tensor& workspace,
                             lt::RuntimeStream stream) {
  auto [place, is_new] = blas.choices.try_emplace({like.device().index(), call});
  if (!is_new) return place->second;
  std::optional<Choice> choice = tuned_choice(blas, call);
  if (!choice.has_value()) {
    const bool tunes = blas.options.gemm_tuning == GemmTuning::kTune;
    const std::vector<Choice> choices = description.heuristics(call, tunes ? kTunedChoices : 1);
    if (!choices.empty()) {
      choice = tunes ? tune(blas, device, call, choices, like, workspace, stream) : choices.front();
    }
  }
  place->second = choice;
  return choice;
}

}  // namespace

bool try_product(const BlasProduct& product) {
  const at::Tensor& x = product.c;
  Blas& state = blas();
  if (!state.is_loaded || x.is_cpu() || x.is_meta()) return false;
  const auto a = matrix_of(product.a), b = matrix_of(product.b), c = matrix_of(x);
  if (!a || !b || !c) return false;
  const c10::DeviceGuard guard(x.device());
  const c10::Stream stream = at::accelerator::getCurrentStream(x.device().index());
  const std::lock_guard lock(state.mutex);
  const BlasDevice& device = device_at(state, x.device().index());
  const ProductPlan plan = plan_product({.a = *a,
                                         .b = *b,
                                         .c = *c,
                                         .accumulate = product.accumulate,
                                         .has_bias = product.bias.defined(),
                                         .has_fast_sums = product.has_fast_sums,
                                         .scaling_a = product.scaling_a,
                                         .scaling_b = product.scaling_b},
                                        device.capability);
  if (!plan || !is_readable(product.a, device) || !is_readable(product.b, device)) return false;
  // The call's A is our b.
  const Pointers pointers{.a = product.b.const_data_ptr(),
                          .b = product.a.const_data_ptr(),
                          .bias = data_or_null(product.bias),
                          .scale_a = data_or_null(product.scale_b),
                          .scale_b = data_or_null(product.scale_a),
                          .c = x.mutable_data_ptr()};
  const Description description(state, device, plan.call, pointers);
  const at::Tensor& workspace = workspace_of(state, device, x, stream.id());
  auto* const native = reinterpret_cast<lt::RuntimeStream>(stream.native_handle());
  const auto choice = choose(state, device, plan.call, description, x, workspace, native);
  if (!choice.has_value()) return false;
  const lt::Status status = description.run(pointers, *choice, workspace, native);
  if (status != lt::kSuccess && state.tuned.algorithms.contains(name_of(plan.call))) {
    throw UserError(
        fmt::format("{}: {} does not run the algorithm of \"{}\" (status {})", state.options.gemm_tuning_file,
                    lt::kName, name_of(plan.call), static_cast<int>(status)),
        "remove the file and tune again");
  }
  check(status, "a product");
  return true;
}

Fp8Products fp8_products_of(at::Device device) {
  Blas& state = blas();
  if (!state.is_loaded || device.is_cpu() || device.is_meta()) return {};
  const c10::DeviceGuard guard(device);
  const std::lock_guard lock(state.mutex);
  const BlasDevice& found = device_at(state, device.has_index() ? device.index() : c10::DeviceIndex{0});
  if (!found.capability.has_fp8) return {};
  return {.are_made = true,
          .are_fnuz = found.has_fnuz,
          .want_rows_along_sum = !found.capability.takes_any_fp8_layout,
          .take_blocks = found.capability.has_block_scales};
}

void set_gemm_tuning(const GemmTuningOptions& options, at::Device device) {
  Blas& state = blas();
  const std::lock_guard lock(state.mutex);
  if (options.is_on() && (device.is_cpu() || !state.is_loaded)) {
    throw UserError(fmt::format("--gemm_tuning chooses algorithms of {}, and {}", lt::kName,
                                device.is_cpu() ? "this run is on the CPU" : "this process has not loaded it"),
                    "leave it off");
  }
  state.options = options;
  state.choices.clear();
  state.tuned = {};
  if (!options.is_on()) return;
  const c10::DeviceGuard guard(device);
  const BlasDevice& of_run = device_at(state, device.has_index() ? device.index() : c10::DeviceIndex{0});
  const std::string library = fmt::format("{} {}", lt::kName, lt::version_of(state.lt, of_run.handle));
  const bool must_exist = options.gemm_tuning == GemmTuning::kUse;
  if (must_exist || std::filesystem::exists(options.gemm_tuning_file)) {
    state.tuned = load_tuned_products(options.gemm_tuning_file, library, of_run.name);
  } else {
    state.tuned = {.library = library, .device = of_run.name, .algorithms = {}};
  }
}

bool chooses_algorithms() { return blas().options.is_on(); }

std::string gemm_tuning_text() {
  Blas& state = blas();
  const std::lock_guard lock(state.mutex);
  if (!state.options.is_on()) return "";
  return fmt::format("{}, {} products of {}{}", state.tuned.library, state.tuned.algorithms.size(),
                     state.options.gemm_tuning_file,
                     state.options.gemm_tuning == GemmTuning::kTune ? ", others are tuned and added" : "");
}

}  // namespace megalith::ops::gpu

#else

#include "core/error.h"

namespace megalith::ops::gpu {

bool try_product(const BlasProduct& /*product*/) { return false; }
Fp8Products fp8_products_of(at::Device /*device*/) { return {}; }

void set_gemm_tuning(const GemmTuningOptions& options, at::Device /*device*/) {
  if (!options.is_on()) return;
  throw UserError("--gemm_tuning chooses algorithms of cuBLASLt or hipBLASLt, and this program was built without them",
                  "leave it off, or use a program that was built for GPUs (docs/build.md)");
}

bool chooses_algorithms() { return false; }
std::string gemm_tuning_text() { return ""; }

}  // namespace megalith::ops::gpu

#endif
