// megalith convert: checkpoints to Hugging Face folders and back, and to GGUF, without building the model.
#include "checkpoint/convert.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/folder_kind.h"
#include "checkpoint/hf.h"
#include "checkpoint/merge_adapter.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "foreign/foreign_checkpoint.h"
#include "foreign/foreign_export.h"
#include "gguf/adapter_export.h"
#include "gguf/export.h"
#include "hub/hub.h"
#include "kinds/kinds.h"
#include "launch/folder_lock.h"
#include "metrics/run_stamp.h"
#include "train/exported_tokenizer.h"
#include "train/outputs.h"
#include "train/text_tokenizer.h"

namespace megalith {
namespace {

constexpr std::string_view kHf = "hf", kGguf = "gguf";

struct ConvertOptions {
  std::optional<std::string> load, load_hf, save, save_hf, to;
  std::optional<int64_t> ckpt_step;
  std::optional<std::string> dtype;
  bool no_save_optim = false, check = false, overwrite = false, allow_nonfinite_weights = false;
  std::optional<std::string> tokenizer_model, merge_adapter, hf_config;
  std::optional<int64_t> global_batch_size;
  HubOptions hub;

  void visit(OptionVisitor& v) {
    v.group("Conversion");
    v.field("load", load,
            "A run's folder or one of checkpoints to read, or one checkpoint of it, written under any layout; also "
            "Megatron-LM's, torchtitan's and transformers' Trainer's.");
    v.field("hf_config", hf_config,
            "Folder with the config.json of load's model, if load does not record it; or of the model that adapters in "
            "load_hf belong to, if they do not name it.");
    v.field("global_batch_size", global_batch_size,
            "Samples of one iteration of load, if load does not record what it consumed.")
        .at_least(1);
    v.field("load_hf", load_hf, "Hugging Face folder to read; with to gguf also PEFT's adapters.").alias("hf_path");
    v.field("save", save,
            "Folder to write a checkpoint into, or a run's, whose checkpoints it joins: whole tensors, one file for "
            "each state.");
    v.field("save_hf", save_hf, "Hugging Face folder to write.");
    v.field(
        "to", to,
        "Form of what is written to save: checkpoint (the default), hf (as save_hf), gguf, one file for llama.cpp and "
        "Ollama, or with the optimizer's state torchtitan, dcp, as torch.distributed.checkpoint loads it under "
        "Hugging Face's names, dcp_fused, the same with the fused experts of transformers 5, or torch_dist of "
        "Megatron-core.");
    v.field("ckpt_step", ckpt_step, "Iteration of the checkpoint to read; default: the newest intact one.").at_least(0);
    v.field("dtype", dtype,
            "Dtype of the weights in save_hf: bf16, fp16 or fp32; in a GGUF file also q8_0, q6_k, q5_k_m or q4_k_m. "
            "Default: as they are stored.");
    v.field("no_save_optim", no_save_optim, "Leave the optimizer's state out of save.");
    v.field(
        "tokenizer_model", tokenizer_model,
        "Tokenizer file or folder to copy into save_hf or a GGUF file. Default: the files in load_hf, or those that "
        "the run of load read.");
    v.field("merge_adapter", merge_adapter,
            "Folder of low-rank adapters, as PEFT writes it, to make part of load_hf's weights in save_hf or a GGUF "
            "file: sums in fp32, rounded once.");
    v.field("check", check, "Compute logits from both models and print how far they agree.");
    v.field(
        "overwrite", overwrite,
        "Replace what is there: the checkpoint of this iteration in save, a folder of "
        "torch.distributed.checkpoint, the model's files in save_hf. Other files stay.");
    v.field("allow_nonfinite_weights", allow_nonfinite_weights,
            "Read weights that hold NaN or infinities, which are refused without it.");
    hub.visit(v);
  }

  bool is_gguf() const { return to == kGguf; }
  // Null for our own forms.
  const ForeignTarget* foreign_target() const { return to ? find_foreign_target(*to) : nullptr; }
  std::string_view target() const { return is_gguf() ? "the GGUF file" : "save_hf"; }
  // A model by itself, with its tokenizer, and not a checkpoint.
  bool is_export() const { return save_hf || is_gguf(); }
  // One of our own checkpoints.
  bool saves_own() const { return save && !is_gguf() && foreign_target() == nullptr; }
  NonfiniteWeights nonfinite() const {
    return allow_nonfinite_weights ? NonfiniteWeights::kAllowed : NonfiniteWeights::kRefused;
  }
};

void check_gguf_file(const std::filesystem::path& file, bool overwrite, std::vector<UserError>& errors) {
  if (std::filesystem::is_directory(file)) {
    errors.emplace_back(fmt::format("save {} is a folder", file.string()), "name a file: --save MODEL.gguf");
  } else if (auto error = check_replaceable("save", file, "", overwrite)) {
    errors.push_back(std::move(*error));
  }
}

// A run's folder stands for the one where it keeps its checkpoints: it does not find others.
std::filesystem::path checkpoints_to_write(const std::filesystem::path& folder) {
  std::error_code ignored;
  const RunFolder run{folder};
  return std::filesystem::exists(run.record(), ignored) ? run.checkpoints() : checkpoints_of(folder);
}

std::vector<UserError> check_options(const ConvertOptions& options) {
  std::vector<UserError> errors;
  if (options.load.has_value() == options.load_hf.has_value()) {
    errors.emplace_back(options.load ? "load and load_hf are both given" : "nothing to read is given",
                        "name a checkpoint with --load DIR or a Hugging Face folder with --load_hf DIR");
  }
  if (options.save.has_value() == options.save_hf.has_value()) {
    errors.emplace_back(options.save ? "save and save_hf are both given" : "nowhere to write is given",
                        "name a folder with --save DIR or --save_hf DIR");
  }
  if (options.load_hf && options.ckpt_step) {
    errors.emplace_back("ckpt_step is given, but load_hf has no iterations", "leave one of them out");
  }
  const ForeignTarget* target = options.foreign_target();
  if (options.to && target == nullptr && *options.to != kHf && *options.to != kGguf && *options.to != "checkpoint") {
    errors.emplace_back(fmt::format("to is '{}'", *options.to),
                        "use checkpoint, hf, gguf, torchtitan, dcp, dcp_fused or torch_dist");
  } else if (options.to && !options.save && !(options.to == kHf && options.save_hf)) {
    errors.emplace_back("to is given, and not where to write", "name it with --save");
  }
  const auto type = options.dtype ? parse_gguf_file_type(*options.dtype) : std::nullopt;
  const bool is_plain = options.dtype == "bf16" || options.dtype == "fp16" || options.dtype == "fp32";
  if (options.dtype && !(options.is_gguf() ? type.has_value() : is_plain)) {
    errors.emplace_back(fmt::format("dtype is '{}'", *options.dtype),
                        type ? "use bf16, fp16 or fp32; quantised types are GGUF's: --to gguf"
                             : fmt::format("use bf16, fp16 or fp32{}",
                                           options.is_gguf() ? ", or q8_0, q6_k, q5_k_m or q4_k_m" : ""));
  } else if (options.dtype && !options.is_export()) {
    errors.emplace_back("dtype is given, but a checkpoint keeps the dtypes that it has", "leave it out");
  }
  if (options.tokenizer_model && !options.is_export()) {
    errors.emplace_back("tokenizer_model is given, but a checkpoint keeps the tokenizer that it has", "leave it out");
  }
  if (options.merge_adapter && (!options.load_hf || !options.is_export())) {
    errors.emplace_back("merge_adapter makes adapters part of a Hugging Face folder's weights",
                        "name the folder with --load_hf DIR, and where to write it with --save_hf DIR or --to gguf");
  }
  if (options.check && (options.is_gguf() || target != nullptr)) {
    errors.emplace_back(fmt::format("check compares logits, and the form {} cannot be loaded here", *options.to),
                        "leave it out");
  }
  if (options.is_gguf() && options.save) check_gguf_file(*options.save, options.overwrite, errors);
  const auto same = [](const std::optional<std::string>& a, const std::optional<std::string>& b) {
    std::error_code ignored;
    return a && b && std::filesystem::equivalent(*a, *b, ignored);
  };
  if (same(options.load, options.save) || same(options.load_hf, options.save_hf) ||
      same(options.load_hf, options.save)) {  // beside checkpoints a model is not found
    errors.emplace_back("what is read would be written over", "give another folder to write");
  } else if (!options.overwrite && options.saves_own() && !list_checkpoints(*options.save).empty()) {
    errors.emplace_back(fmt::format("save {}: it holds checkpoints, the newest of iteration {}", *options.save,
                                    list_checkpoints(*options.save).back()),
                        "add this one to them, in place of one of its iteration, with --overwrite, or name another "
                        "folder");
  } else if (!options.overwrite && options.save_hf && is_exported_model(*options.save_hf)) {
    errors.emplace_back(fmt::format("save_hf {}: it holds a model already", *options.save_hf),
                        "replace its files with --overwrite, or name another folder");
  }
  return errors;
}

at::ScalarType chosen_dtype(const ConvertOptions& options, at::ScalarType stored) {
  if (!options.dtype) return stored;
  return *options.dtype == "bf16" ? at::kBFloat16 : *options.dtype == "fp16" ? at::kHalf : at::kFloat;
}

GgufFileType chosen_file_type(const ConvertOptions& options, at::ScalarType stored) {
  if (options.dtype) return *parse_gguf_file_type(*options.dtype);
  return stored == at::kBFloat16 ? GgufFileType::kBf16
         : stored == at::kHalf   ? GgufFileType::kF16
                                 : GgufFileType::kF32;
}

// Logits of a stored model for a few random tokens, computed in fp32 by the reference operators.
at::Tensor compute_logits(const ModelFamily& family, const ModelConfig& config,
                          const std::function<void(const std::vector<CheckpointTensor>&)>& load,
                          const std::shared_ptr<const LoraOptions>& lora = nullptr) {
  const Groups groups = Groups::single();
  LayerContext context;
  context.groups = &groups;
  context.lora = lora;
  context.kernels = Kernels::kReference;
  const auto model = family.build_whole(config, context);
  load(model_tensors(model->parameters()));
  const at::NoGradGuard no_grad;
  const ModelInput input = kind_of(all_kinds(), config.model_type).some_input(config);
  return model->forward(input, {}, HeadOutput::kLogits).logits.to(at::kDouble);
}

at::Tensor logits_of_checkpoint(const std::filesystem::path& folder, const StoredModel& model,
                                NonfiniteWeights nonfinite) {
  return compute_logits(*model.family, model.config, [&](const std::vector<CheckpointTensor>& tensors) {
    CheckpointState state;
    state.tensors = tensors;
    state.architecture = model.state.architecture;
    load_checkpoint(folder, state, Groups::single(), {.with_optimizer = false, .nonfinite = nonfinite});
  });
}

at::Tensor logits_of_hf(const std::filesystem::path& folder, NonfiniteWeights nonfinite) {
  const HfModel read = read_hf_config(folder);
  return compute_logits(*read.family, read.config, [&](const std::vector<CheckpointTensor>& tensors) {
    load_hf(folder, tensors, Groups::single(), nullptr, nonfinite);
  });
}

// The same with unmerged adapters next to the weights.
at::Tensor logits_with_adapter(const std::filesystem::path& folder, const std::filesystem::path& adapter,
                               const ReadAdapter& read, NonfiniteWeights nonfinite) {
  const HfModel hf = read_hf_config(folder);
  const auto load = [&](const std::vector<CheckpointTensor>& tensors) {
    std::vector<CheckpointTensor> base, adapters;
    for (const CheckpointTensor& tensor : tensors) {
      const std::string& name = tensor.placement->pieces.at(0).name;
      const bool is_of_adapter = name.find(".lora_") != std::string::npos;
      if (!is_of_adapter) base.push_back(tensor);
      if (is_of_adapter || read.options.saves(name)) adapters.push_back(tensor);
    }
    load_hf(folder, base, Groups::single(), nullptr, nonfinite);
    load_adapter(adapter, adapters, Groups::single(), nonfinite);
  };
  return compute_logits(*hf.family, hf.config, load, std::make_shared<const LoraOptions>(read.options));
}

// Non-finite logits agree with nothing.
int report_not_finite() {
  fmt::print(stderr, "error: the logits are not finite, so nothing was compared\n");
  return kExitFailure;
}

// Checks a merged folder: subtracting the adapters gives the base's weights up to rounding, and its logits are those of
// the base with the adapters.
int report_merge(const ReadAdapter& adapter, const std::filesystem::path& adapter_folder, const StoredModel& merged,
                 const StoredModel& base, NonfiniteWeights nonfinite) {
  const double difference = unmerged_difference(adapter, merged, base);
  const at::ScalarType dtype = merged.dtype_of(kModelKey);
  const double rounding = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0x1p-24;
  print_out("{} matrices with the adapters taken out again agree to {:.3g} of their largest element\n",
            adapter.matrices.size(), difference);
  const at::Tensor written = logits_of_hf(merged.folder, nonfinite),
                   read = logits_with_adapter(base.folder, adapter_folder, adapter, nonfinite);
  const double apart = (written - read).abs().max().item<double>(), scale = read.abs().max().item<double>();
  print_out("logits of {} tokens agree with those of the adapters beside the model to {:.3g} of the largest\n",
            read.size(1), scale > 0 ? apart / scale : apart);
  // Some sums in fp32 around one rounding to the dtype.
  const bool is_near = difference <= 2 * rounding + 0x1p-20;
  if (is_near && std::isfinite(apart)) return kExitSuccess;
  if (is_near) return report_not_finite();
  fmt::print(stderr, "error: rounding to {} explains a difference of {:.3g} only\n", c10::toString(dtype),
             2 * rounding + 0x1p-20);
  return kExitFailure;
}

// Compares written with read logits. Equal bits must give equal logits; narrower dtypes may differ.
int report_agreement(const at::Tensor& written, const at::Tensor& read, bool is_lossless) {
  const double difference = (written - read).abs().max().item<double>(), scale = read.abs().max().item<double>();
  if (!std::isfinite(difference)) return report_not_finite();
  print_out("logits of {} tokens agree to {:.3g} of the largest ({:.3g} of {:.3g})\n", read.size(1),
            scale > 0 ? difference / scale : difference, difference, scale);
  if (!is_lossless || difference == 0) return kExitSuccess;
  fmt::print(stderr, "error: the dtypes hold every value, so the logits should be equal\n");
  return kExitFailure;
}

// Adds the model's tokenizer: the one named, or that of load_hf or of load's run, which may have been moved since
// without it. Returns its options.
TokenizerOptions add_tokenizer(const ConvertOptions& options, const StoredModel& model, CommandContext& context,
                               ModelConfig& config, HfExport& settings) {
  TokenizerOptions named;
  std::optional<std::string> of_model = options.load_hf;
  if (options.load) {
    named = recorded_tokenizer(model.state.configuration);
    of_model = text_tokenizer_of(model.state.configuration);
  }
  if (options.tokenizer_model) {
    named = {.tokenizer_model = *options.tokenizer_model};
  } else if (named.tokenizer_model) {
    try {
      resolve_hub_option("tokenizer_model", named.tokenizer_model, HubNeed::kTokenizer, context.environment,
                         options.hub, context.log);
    } catch (const UserError& error) {
      context.log.note("{} has no tokenizer: {}; --tokenizer_model names one", options.target(), error.message());
      return {};
    }
  }
  for (const std::optional<std::string>* path : {&named.tokenizer_model, &named.vocab_file, &named.merge_file}) {
    std::error_code ignored;
    if (!*path || std::filesystem::exists(**path, ignored)) continue;
    context.log.note("{} has no tokenizer: the run's {} is not there; --tokenizer_model names another",
                     options.target(), **path);
    return {};
  }
  choose_tokenizer_files(named, of_model, settings);
  const auto tokenizer = open_tokenizer(named, of_model, config, context.log);
  add_special_tokens(tokenizer.get(), config, settings);
  return named;
}

GgufExport gguf_settings(const ConvertOptions& options, const HfExport& export_settings, at::ScalarType stored,
                         const std::string& name, CommandContext& context) {
  GgufExport settings{.type = chosen_file_type(options, stored), .name = name, .log = &context.log};
  settings.pad_token_id = export_settings.pad_token_id;
  if (options.load_hf) settings.source = *options.load_hf;
  if (export_settings.tokenizer) {
    settings.tokenizer = GgufTokenizerFiles::find(*export_settings.tokenizer);
  } else if (export_settings.vocab_file && export_settings.merge_file) {
    settings.tokenizer.emplace();
    settings.tokenizer->vocab = *export_settings.vocab_file;
    settings.tokenizer->merges = *export_settings.merge_file;
  } else {
    context.log.note("the GGUF file has no tokenizer, so its model reads and writes ids; --tokenizer_model names one");
  }
  return settings;
}

int64_t bytes_in(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return file_bytes(path);
  int64_t num_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_regular_file()) num_bytes += static_cast<int64_t>(entry.file_size());
  }
  return num_bytes;
}

// A folder of adapters as llama.cpp's; the base says names and shapes.
int convert_adapter(const ConvertOptions& options, CommandContext& context) {
  const std::string& folder = *options.load_hf;
  const auto type = chosen_file_type(options, at::kFloat);
  if (is_k_quant(type)) {
    throw UserError(fmt::format("dtype is '{}', and {} holds adapters, whose rows are short", *options.dtype, folder),
                    "use bf16, fp16, fp32 or q8_0");
  }
  if (options.tokenizer_model || options.merge_adapter || options.global_batch_size) {
    throw UserError(fmt::format("tokenizer_model, merge_adapter and global_batch_size have no meaning for the adapters "
                                "in {}",
                                folder),
                    "leave them out; to make adapters part of a model give it to --load_hf, and these to "
                    "--merge_adapter");
  }
  std::optional<std::string> base = options.hf_config;
  if (!base) {
    const Json config = parse_json(read_adapter_folder(folder).config, kAdapterConfigFile);
    const auto named = config.find("base_model_name_or_path");
    if (named != config.end() && named->is_string()) base = named->get<std::string>();
  }
  if (!base) {
    throw UserError(fmt::format("{} does not name the model that its adapters belong to", folder),
                    "name its folder with --hf_config DIR");
  }
  resolve_hub_option("hf_config", base, HubNeed::kModel, context.environment, options.hub, context.log);
  const HfModel read = read_hf_config(*base);
  StoredModel model;
  model.family = read.family;
  model.config = read.config;
  model.folder = *base;
  const ReadAdapter adapter = read_adapter_for(folder, model, options.nonfinite());
  save_gguf_adapter(*options.save, adapter, *read.family, read.config, type, model_name(folder));
  print_out("{} → {}: {}\n", folder, *options.save, format_bytes(bytes_in(*options.save)));
  return kExitSuccess;
}

// Folders and names of the hub become paths; throws everything that is wrong with the options together.
void complete_options(ConvertOptions& options, const OptionSet& set, CommandContext& context) {
  if (options.load) options.load = checkpoints_of(*options.load).string();
  if (options.to == kHf && !options.save_hf) options.save_hf = std::exchange(options.save, std::nullopt);
  if (options.saves_own()) options.save = checkpoints_to_write(*options.save).string();
  std::vector<UserError> errors = refuse_urls(set);
  for (UserError& error : check_options(options)) errors.push_back(std::move(error));
  throw_if_any(errors);
  resolve_hub_option("load_hf", options.load_hf, HubNeed::kModel, context.environment, options.hub, context.log);
  if (options.load_hf) options.load_hf = model_folder_of(*options.load_hf).string();
  resolve_hub_option("tokenizer_model", options.tokenizer_model, HubNeed::kTokenizer, context.environment, options.hub,
                     context.log);
}

void check_foreign(const ConvertOptions& options, const std::optional<ForeignFolder>& foreign) {
  if (foreign && options.check) {
    throw UserError(fmt::format("check with {}: logits are compared between our checkpoints and Hugging Face's folders",
                                foreign->folder.string()),
                    "leave check out, and give it to a second conversion, of what this one writes");
  }
  if (!foreign && (options.hf_config || options.global_batch_size)) {
    throw UserError("hf_config and global_batch_size describe another trainer's checkpoint, and load names none",
                    "leave them out");
  }
}

StoredModel read_model(const ConvertOptions& options, const std::optional<ForeignFolder>& foreign,
                       CommandContext& context) {
  if (!options.load) return open_stored_hf(*options.load_hf, options.nonfinite());
  if (!foreign) return open_stored_checkpoint(*options.load, options.ckpt_step, context.log, options.nonfinite());
  return open_stored_foreign(*foreign, {.with_optimizer = !options.is_export() && !options.no_save_optim,
                                        .hf_config = options.hf_config,
                                        .global_batch_size = options.global_batch_size,
                                        .nonfinite = options.nonfinite()});
}

struct WrittenModel {
  std::filesystem::path path;
  bool is_lossless = true;
};

// `named`: what was converted, in the words of the command line.
WrittenModel write_export(const ConvertOptions& options, const StoredModel& model, const std::string& named,
                          CommandContext& context) {
  // The masters are what training updated: bf16 weights are their rounding.
  const bool has_masters = !model.tensors_of(kMasterKey).empty();
  const at::ScalarType dtype = chosen_dtype(options, model.dtype_of(kModelKey));
  const bool takes_masters = has_masters && c10::elementSize(dtype) > c10::elementSize(model.dtype_of(kModelKey));
  const std::string_view key = takes_masters ? kMasterKey : kModelKey;
  HfExport settings{.dtype = dtype};
  settings.log = &context.log;
  ModelConfig config = model.config;
  const TokenizerOptions tokenizer = add_tokenizer(options, model, context, config, settings);
  WrittenModel written;
  written.is_lossless = takes_masters == has_masters && c10::promoteTypes(dtype, model.dtype_of(key)) == dtype;
  if (options.is_gguf()) {
    written.path = *options.save;
    save_gguf(written.path, model.tensors_of(key), *model.family, config,
              gguf_settings(options, settings, model.dtype_of(key), model_name(named), context));
  } else {
    written.path = *options.save_hf;
    save_hf(written.path, model.tensors_of(key), *model.family, config, Groups::single(), settings);
    if (!config.is_of_diffusers()) complete_export(written.path, tokenizer, options.load_hf);
  }
  return written;
}

WrittenModel write_model(const ConvertOptions& options, StoredModel& model, const std::string& named,
                         CommandContext& context) {
  if (options.is_export()) return write_export(options, model, named, context);
  if (const ForeignTarget* target = options.foreign_target()) {
    return {save_foreign(*target, *options.save, model,
                         {.with_optimizer = !options.no_save_optim, .overwrite = options.overwrite}, context.log)};
  }
  return {save_checkpoint(*options.save, model.state, Groups::single(), context.log,
                          {.with_optimizer = !options.no_save_optim, .retention = {}})};
}

int check_written(const ConvertOptions& options, const StoredModel& model, const std::optional<ReadAdapter>& adapter,
                  const WrittenModel& written) {
  const NonfiniteWeights nonfinite = options.nonfinite();
  if (adapter) {
    return report_merge(*adapter, *options.merge_adapter, open_stored_hf(written.path, nonfinite),
                        open_stored_hf(*options.load_hf, nonfinite), nonfinite);
  }
  const auto logits = [&](const std::filesystem::path& folder, bool is_checkpoint) {
    return is_checkpoint ? logits_of_checkpoint(folder, model, nonfinite) : logits_of_hf(folder, nonfinite);
  };
  return report_agreement(logits(written.path, options.save.has_value()),
                          logits(model.folder, options.load.has_value()), written.is_lossless);
}

}  // namespace

int run_convert(CommandContext& context) {
  ConvertOptions options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) {
    return print_help(context,
                      "usage: megalith convert --load DIR | --load_hf DIR\n"
                      "                        --save DIR | --save_hf DIR | --to gguf --save FILE\n"
                      "                        [--merge_adapter DIR] [--check]",
                      set);
  }
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  const std::optional<std::string> named = options.load ? options.load : options.load_hf;
  complete_options(options, set, context);
  if (options.is_gguf() && options.load_hf && is_adapter_folder(*options.load_hf)) {
    return convert_adapter(options, context);
  }
  const auto foreign = options.load ? find_foreign(*options.load, options.ckpt_step) : std::nullopt;
  check_foreign(options, foreign);
  std::optional<FolderLock> hold;  // against a run that writes there
  if (options.saves_own()) {
    hold.emplace(*options.save, fmt::format("save {}", *options.save),
                 FolderLockSettings{.self = own_holder(make_run_id(), "", utc_timestamp())});
  }
  StoredModel model = read_model(options, foreign, context);
  for (const std::string& note : model.notes) context.log.note("{}", note);
  std::optional<ReadAdapter> adapter;
  if (options.merge_adapter) {
    adapter = read_adapter_for(*options.merge_adapter, model, options.nonfinite());
    merge_adapter(*adapter, chosen_dtype(options, model.dtype_of(kModelKey)), model);
  }
  const WrittenModel written = write_model(options, model, named.value(), context);
  print_out("{} → {}: {}\n", model.folder.string(), written.path.string(), format_bytes(bytes_in(written.path)));
  return options.check ? check_written(options, model, adapter, written) : kExitSuccess;
}

std::vector<CommandOptions> convert_options() { return {options_of<ConvertOptions>("convert")}; }

}  // namespace megalith
