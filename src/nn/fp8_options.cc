// Eight-bit products' options, by Megatron-LM's names.
#include <fmt/format.h>

#include "nn/fp8_recipe.h"
#include "nn/mx_recipe.h"

namespace megalith {

void Fp8Options::visit(OptionVisitor& v) {
  v.group("Precision", {.acts_in = kWithWeights | RunCommands{RunCommand::kBenchGemm}});
  v.field("fp8_format", fp8_format,
          "Round the operands of the layers' matrix products to eight bits: hybrid has E4M3 forward and E5M2 "
          "gradients, e4m3 has E4M3 for both. Embedding, router, attention and head stay in the model's precision. "
          "A GPU multiplies the eight bits as they are. On the CPU, and for experts, the products are computed in fp32 "
          "from the rounded values: FP8 training's numbers and smaller activations, but not its speed.")
      .words({"hybrid", "e4m3"})
      .alias("fp8")
      .in_toy(InToy::kSetAside);
  v.field("fp8_recipe", fp8_recipe,
          "How scales are found when fp8_format is set. delayed: for each tensor from its largest absolute values in "
          "past microbatches. tensorwise: from its present one (Transformer Engine's current scaling). blockwise: for "
          "each 128 elements of an input or a gradient and each 128 x 128 of a weight, powers of two. mxfp8: likewise "
          "for 32 and 32 x 32, computed in the model's precision from the rounded values.")
      .words({"delayed", "tensorwise", "blockwise", "mxfp8"});
  v.field("fp4_format", fp4_format,
          "Round the operands of the layers' matrix products to four bits, as fp4_recipe says. Products are computed "
          "in the model's precision from the rounded values: FP4 training's numbers, but not its speed.")
      .words({"e2m1"})
      .alias("fp4")
      .in_toy(InToy::kSetAside);
  v.field("fp4_recipe", fp4_recipe,
          "How scales are found when fp4_format is set. mxfp4: for each 32 elements and each 32 x 32 of a weight, "
          "powers of two; operands of the weights' gradients are turned by a Hadamard matrix first. nvfp4 is refused.")
      .words({"nvfp4", "mxfp4"});
  v.group("Precision", {.acts_in = kWithWeights});
  v.field("fp8_margin", fp8_margin, "With fp8_recipe delayed: scales are smaller by this power of two.").at_least(0);
  v.field("fp8_amax_history_len", fp8_amax_history_len,
          "With fp8_recipe delayed: how many microbatches' largest absolute values are remembered.")
      .unit("microbatches")
      .at_least(1);
  v.field("fp8_amax_compute_algo", fp8_amax_compute_algo,
          "With fp8_recipe delayed: whether a scale follows from the newest value of the history or from its largest.")
      .words({"most_recent", "max"});
  v.field("fp8_wgrad", fp8_wgrad,
          "Round the operands of the weights' gradients too. Without it these products have the model's precision, and "
          "inputs are kept in it.");
  v.field("keep_fp8_weight_transpose_cache", keep_fp8_weight_transpose_cache,
          "Keep the transpose of each weight's eight-bit copy until the end of the step, where the GPU's library reads "
          "it in backward (a byte for each parameter). Without it the transpose is made again for each microbatch.")
      .opposite("no_fp8_weight_transpose_cache")
      .changes_numbers(false);
  v.field("first_last_layers_bf16", first_last_layers_bf16,
          "Leave the first and the last layers of the model out of fp8_format. Not with fp8_recipe delayed.");
  v.field("num_layers_at_start_in_bf16", num_layers_at_start_in_bf16,
          "With first_last_layers_bf16: how many of the first layers.")
      .unit("layers")
      .at_least(0);
  v.field("num_layers_at_end_in_bf16", num_layers_at_end_in_bf16,
          "With first_last_layers_bf16: how many of the last layers.")
      .unit("layers")
      .at_least(0);
}

std::string Fp8Options::words() const {
  return fp8_format ? fmt::format("fp8_format {}", *fp8_format) : fmt::format("fp4_format {}", *fp4_format);
}

namespace {

void check_microscaled(const Fp8Options& options, const MxSizes& sizes, std::vector<UserError>& errors) {
  const std::string recipe = options.fp4_format ? "fp4_recipe " + options.fp4_recipe : "fp8_recipe mxfp8";
  if (options.fp8_format && options.fp4_format) {
    errors.emplace_back("fp8_format and fp4_format are both given", "keep one of them");
  } else if (options.fp4_format && options.fp4_recipe == "nvfp4") {
    errors.emplace_back("fp4_recipe nvfp4: blocks of 16 with scales of eight bits are not provided",
                        "set fp4_recipe to mxfp4");
  } else if (sizes.has_experts || (sizes.is_of_pictures && options.fp4_format)) {
    errors.emplace_back(fmt::format("{} is not provided for {}", recipe,
                                    sizes.has_experts ? "experts, whose rows differ in number" : "models of pictures"),
                        sizes.has_experts ? "take fp8_recipe tensorwise or blockwise" : "take fp8_format");
  }
  for (const auto& [name, width] : sizes.widths) {
    if (width % kMxBlock == 0) continue;
    errors.emplace_back(fmt::format("{} has blocks of {}, and {} is {}", recipe, kMxBlock, name, width),
                        "change the model or its tensor parallelism, or take fp8_recipe tensorwise");
  }
}

}  // namespace

std::vector<UserError> check_fp8_options(const Fp8Options& options, int64_t num_layers, const MxSizes& sizes) {
  std::vector<UserError> errors;
  if (!options.is_on()) return errors;
  if (options.is_microscaled()) check_microscaled(options, sizes, errors);
  if (!options.first_last_layers_bf16) return errors;
  if (options.fp8_format && options.fp8_recipe == "delayed") {
    errors.emplace_back("first_last_layers_bf16 does not work with fp8_recipe delayed",
                        "set fp8_recipe to tensorwise or blockwise, or leave first_last_layers_bf16 out");
  }
  const int64_t num_plain = options.num_layers_at_start_in_bf16 + options.num_layers_at_end_in_bf16;
  if (num_plain > num_layers) {
    errors.emplace_back(fmt::format("num_layers_at_start_in_bf16 {} and num_layers_at_end_in_bf16 {} are more than the "
                                    "model's {} layers",
                                    options.num_layers_at_start_in_bf16, options.num_layers_at_end_in_bf16, num_layers),
                        fmt::format("let them add up to {} at most", num_layers));
  }
  return errors;
}

std::vector<std::string> fp8_notes(const Fp8Options& options) {
  std::vector<std::string> notes;
  const Fp8Options defaults;
  const auto add = [&](bool is_set, const char* name, const char* needs) {
    if (is_set) notes.push_back(fmt::format("{} is read only with {}", name, needs));
  };
  if (!options.fp8_format) add(options.fp8_recipe != defaults.fp8_recipe, "fp8_recipe", "fp8_format");
  if (!options.fp4_format) add(options.fp4_recipe != defaults.fp4_recipe, "fp4_recipe", "fp4_format");
  if (!options.is_on()) return notes;
  if (options.is_microscaled()) {
    notes.push_back(fmt::format(
        "{} {}: products are computed in the model's precision from rounded values, more slowly than without",
        options.words(), options.fp4_format ? options.fp4_recipe : options.fp8_recipe));
  }
  if (options.fp8_recipe != "delayed") {
    const char* delayed = "fp8_recipe delayed";
    add(options.fp8_margin != defaults.fp8_margin, "fp8_margin", delayed);
    add(options.fp8_amax_history_len != defaults.fp8_amax_history_len, "fp8_amax_history_len", delayed);
    add(options.fp8_amax_compute_algo != defaults.fp8_amax_compute_algo, "fp8_amax_compute_algo", delayed);
  }
  if (!options.first_last_layers_bf16) {
    const char* of_layers = "first_last_layers_bf16";
    add(options.num_layers_at_start_in_bf16 != 1, "num_layers_at_start_in_bf16", of_layers);
    add(options.num_layers_at_end_in_bf16 != 1, "num_layers_at_end_in_bf16", of_layers);
  }
  return notes;
}

std::vector<std::string> fp8_product_notes(const Fp8Options& options, const ops::gpu::Fp8Products& library,
                                           const Fp8Sizes& sizes) {
  if (options.is_microscaled()) return {};  // fp8_notes()
  const bool is_blockwise = options.fp8_recipe == "blockwise";
  if (!library.are_made || (is_blockwise && !library.take_blocks)) {
    return {
        fmt::format("fp8_recipe {}: no library multiplies such numbers on this GPU, so they are multiplied in fp32, "
                    "more slowly than bf16 is",
                    options.fp8_recipe)};
  }
  std::vector<std::string> notes;
  if (sizes.experts > 0) {
    notes.emplace_back(
        "fp8_format: the experts' numbers are multiplied in fp32, more slowly than in bf16, because nobody but the "
        "device knows how many rows each expert has");
  }
  const auto expect_multiple = [&](const char* what, int64_t size) {
    const int64_t multiple = is_blockwise ? 128 : 16;
    if (size % multiple == 0) return;
    notes.push_back(
        fmt::format("fp8_recipe {}: {} is {}, and the library takes multiples of {}: products with it are "
                    "made in fp32, more slowly than in bf16",
                    options.fp8_recipe, what, size, multiple));
  };
  expect_multiple("hidden_size", sizes.hidden);
  expect_multiple("a rank's share of ffn_hidden_size", sizes.ffn_of_rank);
  expect_multiple("the number of a microbatch's tokens on a rank", sizes.tokens);
  return notes;
}

std::string fp8_text(const Fp8Options& options, int64_t num_layers) {
  if (!options.is_on()) return "";
  std::string text = options.fp4_format ? fmt::format("{} FP4, {}", *options.fp4_format, options.fp4_recipe)
                                        : fmt::format("{} FP8, {}", *options.fp8_format, options.fp8_recipe);
  if (options.fp8_format && options.fp8_recipe == "delayed") {
    text += fmt::format(" (history {}, {}, margin {})", options.fp8_amax_history_len, options.fp8_amax_compute_algo,
                        options.fp8_margin);
  }
  if (!options.fp8_wgrad) text += ", weight gradients without";
  if (options.first_last_layers_bf16) {
    text += fmt::format(", without the first {} and the last {} of {} layers", options.num_layers_at_start_in_bf16,
                        options.num_layers_at_end_in_bf16, num_layers);
  }
  return text;
}

}  // namespace megalith
